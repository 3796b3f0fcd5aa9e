"""The server half of `mpsguard-ctl incident`."""

from collections.abc import Awaitable
from typing import TypeVar

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.incident import Arguments
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.journal.records import Bundle, JournalError, RecordedIncident

T = TypeVar("T")


LATEST = "latest"


_LOOKED_AT = 1000
"""The newest incidents among which a part of an id is looked for; a whole id is found however old."""


async def serve(guard: Guard, arguments: Arguments) -> RecordedIncident:
    """The server half of `show` and `report`."""
    name = await _resolve(guard.journal, arguments.id)
    return await _found(guard.journal.get(name), name)


async def serve_export(guard: Guard, arguments: Arguments) -> Bundle:
    """The server half of `export`."""
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


HANDLER: Handler[Guard, Arguments] = Handler("incident", Arguments, serve)


EXPORT_HANDLER: Handler[Guard, Arguments] = Handler("incident_export", Arguments, serve_export)
