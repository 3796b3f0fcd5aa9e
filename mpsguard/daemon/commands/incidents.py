"""The server half of `mpsguard-ctl incidents`."""

from mpsguard.control_api.handler import Handler
from mpsguard.control_api.messages.incidents import Arguments, IncidentList
from mpsguard.control_api.protocol import RequestError
from mpsguard.daemon.guard import Guard
from mpsguard.journal.records import JournalError


async def serve(guard: Guard, arguments: Arguments) -> IncidentList:
    """The server half."""
    if not 1 <= arguments.last <= 1000:
        raise RequestError("arguments", "1 to 1000 incidents can be listed")
    try:
        return IncidentList(tuple(await guard.journal.list(arguments.last, arguments.since)))
    except JournalError as error:
        raise RequestError("failed", str(error)) from None


HANDLER: Handler[Guard, Arguments] = Handler("incidents", Arguments, serve)
