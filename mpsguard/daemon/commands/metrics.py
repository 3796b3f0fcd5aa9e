"""The server half of `mpsguard-ctl metrics`."""

from mpsguard.control_api.handler import Handler
from mpsguard.control_api.messages.metrics import Arguments, Exposition
from mpsguard.daemon.guard import Guard


async def serve(guard: Guard, _: Arguments) -> Exposition:
    """The server half."""
    guard.refresh_metrics()
    return Exposition(guard.metrics.exposition())


HANDLER = Handler("metrics", Arguments, serve)
