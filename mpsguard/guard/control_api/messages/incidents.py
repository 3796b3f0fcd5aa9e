"""Messages of the command ``incidents``."""

import msgspec

from mpsguard.guard.journal.records import IncidentSummary


class Arguments(msgspec.Struct):
    """How many at most, and (UNIX seconds) since when."""

    last: int = 20
    since: float = 0.0


class IncidentList(msgspec.Struct, frozen=True):
    """The newest incidents, newest first."""

    incidents: tuple[IncidentSummary, ...]
