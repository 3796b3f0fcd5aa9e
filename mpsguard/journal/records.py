"""What the journal gives back, and what it is allowed to take."""

from typing import Any, Final

import msgspec

from mpsguard.evidence import Evidence
from mpsguard.incident import Confidence, FaultClass, Incident, Suspect
from mpsguard.model import Client

BUNDLE_VERSION: Final = 1


class JournalError(Exception):
    """The journal cannot be used; one line says why and what could be done."""


class JournalBusyError(JournalError):
    """Too much waits to be written for a question to be taken."""


class Limits(msgspec.Struct, frozen=True):
    """How much is kept. The oldest goes first."""

    incidents: int = 1000
    evidence: int = 50_000
    """Observations, beside those that an incident carries with it."""
    bytes: int = 64 << 20
    """Of the database file; the write-ahead log beside it takes a few MiB more."""
    queue: int = 10_000
    """Records that may wait for the disk."""

    def __post_init__(self) -> None:
        if min(self.incidents, self.evidence, self.queue) < 1 or self.bytes < 256 << 10:
            raise ValueError("at least one of each is kept, in at least 256 KiB")


class Decision(msgspec.Struct, frozen=True):
    """What was decided about an incident, done about it, or came of it."""

    at: float
    """UNIX seconds."""
    kind: str
    text: str
    data: dict[str, Any]


class IncidentSummary(msgspec.Struct, frozen=True):
    """An incident as a line in a list. ``began`` and ``ended`` are UNIX seconds."""

    id: str
    began: float
    ended: float
    fault_class: FaultClass
    gpu: str | None
    lane: str | None
    culprit: Suspect | None
    culprit_command: str | None
    """The culprit's command line if it was a known client: its own words."""
    candidates: tuple[Suspect, ...]
    victims: tuple[Suspect, ...]
    confidence: Confidence
    reason: str
    xids: tuple[int, ...]


class RecordedIncident(msgspec.Struct, frozen=True):
    """An incident with what is needed to understand it later, when its processes and its boot are gone."""

    id: str
    boot_id: str
    wall_offset: float
    """Added to a CLOCK_MONOTONIC time of the incident it gives UNIX seconds."""
    recorded_at: float
    updated_at: float
    incident: Incident
    clients: tuple[Client, ...]
    """Those of its processes that were known as clients."""
    decisions: tuple[Decision, ...]
    versions: dict[str, str]
    """Of what ran when it was recorded."""
    evidence_left_out: int
    """Pieces of evidence that were too many to be kept with it; the first and the last ones are there."""


class Bundle(msgspec.Struct, frozen=True):
    """One incident for elsewhere: the verdict, and all that triage needs to come to it again."""

    version: int
    exported_at: float
    record: RecordedIncident
    evidence: tuple[Evidence, ...]
    """In the order of observation: the incident's own, what was seen around it, and who was on a lane by then."""
    dropped: int
    """Records this guard could not keep since it started: if not 0, evidence may be missing."""
