"""Messages about incidents: ``incidents``, ``incident``."""

import msgspec

from mpsguard.guard.journal.records import IncidentSummary


class IncidentsArguments(msgspec.Struct):
    """How many at most, and (UNIX seconds) since when."""

    last: int = 20
    since: float = 0.0


class IncidentList(msgspec.Struct, frozen=True):
    """The newest incidents, newest first."""

    incidents: tuple[IncidentSummary, ...]


class IncidentArguments(msgspec.Struct):
    """Which one."""

    id: str
