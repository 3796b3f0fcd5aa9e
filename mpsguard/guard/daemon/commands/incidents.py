"""The server half of `mpsguard-ctl incidents`."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.incidents import Arguments, IncidentList
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.journal.records import JournalError


async def serve(guard: Guard, arguments: Arguments) -> IncidentList:
    """The server half."""
    if not 1 <= arguments.last <= 1000:
        raise RequestError("arguments", "1 to 1000 incidents can be listed")
    try:
        return IncidentList(tuple(await guard.journal.list(arguments.last, arguments.since)))
    except JournalError as error:
        raise RequestError("failed", str(error)) from None


HANDLER: Handler[Guard, Arguments] = Handler("incidents", Arguments, serve)
