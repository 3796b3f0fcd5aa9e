"""The server half of `mpsguard-ctl metrics`."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.metrics import Arguments, Exposition
from mpsguard.guard.daemon.guard import Guard


async def serve(guard: Guard, _: Arguments) -> Exposition:
    """The server half."""
    guard.refresh_metrics()
    return Exposition(guard.metrics.exposition())


HANDLER = Handler("metrics", Arguments, serve)
