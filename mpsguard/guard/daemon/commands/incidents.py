"""Commands about incidents: list them, read one, export one."""

from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from mpsguard.guard.control_api.messages.incidents import IncidentArguments, IncidentList, IncidentsArguments
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.control_api.server import Handler
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.journal.records import Bundle, JournalError, RecordedIncident

T = TypeVar("T")

LATEST = "latest"

_LOOKED_AT = 1000
"""The newest incidents among which a part of an id is looked for; a whole id is found however old."""


async def _incidents(guard: Guard, arguments: IncidentsArguments) -> IncidentList:
    if not 1 <= arguments.last <= 1000:
        raise RequestError("arguments", "1 to 1000 incidents can be listed")
    try:
        return IncidentList(tuple(await guard.journal.list(arguments.last, arguments.since)))
    except JournalError as error:
        raise RequestError("failed", str(error)) from None


async def _incident(guard: Guard, arguments: IncidentArguments) -> RecordedIncident:
    name = await _resolve(guard.journal, arguments.id)
    return await _found(guard.journal.get(name), name)


async def _export(guard: Guard, arguments: IncidentArguments) -> Bundle:
    name = await _resolve(guard.journal, arguments.id)
    return await _found(guard.journal.export(name), name)


async def _resolve(journal: Journal, name: str) -> str:
    """Return the whole id for one of `LATEST`, a whole id, or its beginning or end if only one id has that."""
    try:
        known = [summary.id for summary in await journal.list(_LOOKED_AT)]
    except JournalError as error:
        raise RequestError("failed", str(error)) from None
    if name == LATEST:
        if not known:
            raise RequestError("failed", "there was no incident yet")
        return known[0]
    if name in known or not name:
        return name
    meant = [each for each in known if each.startswith(name) or each.endswith(name)]
    if len(meant) > 1:
        raise RequestError(
            "arguments", f"{name[:64]!r} is the beginning or end of {len(meant)} ids: {', '.join(meant[:4])}"
        )
    return meant[0] if meant else name


async def _found(look: Awaitable[T], name: str) -> T:
    try:
        return await look
    except KeyError:
        raise RequestError("failed", f"no incident {name[:64]!r}; `incidents` lists those there are") from None
    except JournalError as error:
        raise RequestError("failed", str(error)) from None


HANDLERS: Final[tuple[Handler[Guard, Any], ...]] = (
    Handler("incidents", IncidentsArguments, _incidents),
    Handler("incident", IncidentArguments, _incident),
    Handler("incident_export", IncidentArguments, _export),
)
