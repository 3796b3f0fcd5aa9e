"""The server half of the command ``pods``, which `mpsguard kubernetes-reporter` gives."""

from mpsguard.control_api.handler import Handler
from mpsguard.control_api.messages.pods import Arguments, PodsNoted
from mpsguard.daemon.guard import Guard
from mpsguard.pods import PodTable


async def serve(guard: Guard, arguments: Arguments) -> PodsNoted:
    """The server half."""
    guard.pods = PodTable(arguments.pods)
    return PodsNoted(len(arguments.pods))


HANDLER = Handler("pods", Arguments, serve)
