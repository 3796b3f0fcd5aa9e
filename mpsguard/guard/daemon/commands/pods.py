"""The server half of the command ``pods``, which `mpsguard kubernetes-reporter` gives."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.pods import Arguments, PodsNoted
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.pods import PodTable


async def serve(guard: Guard, arguments: Arguments) -> PodsNoted:
    """The server half."""
    guard.pods = PodTable(arguments.pods)
    return PodsNoted(len(arguments.pods))


HANDLER = Handler("pods", Arguments, serve)
