"""The journal's records, its limits and its errors."""

from typing import Any, Final

import msgspec

from mpsguard.guard.evidence import Evidence
from mpsguard.guard.incident import Confidence, FaultClass, Incident, Suspect
from mpsguard.guard.model import Client

BUNDLE_VERSION: Final = 1


class JournalError(Exception):
    """The journal cannot be used; one line says why and what to do."""


class JournalBusyError(JournalError):
    """The queue is full, so that no query is accepted."""


class JournalLimits(msgspec.Struct, frozen=True):
    """How much is kept. The oldest records are deleted first."""

    incidents: int = 1000
    evidence: int = 50_000
    """Observations, beside those that are part of an incident."""
    bytes: int = 64 << 20
    """Size of the database file; the write-ahead log beside it takes a few MiB more."""
    queue: int = 10_000
    """Records that may wait for the disk."""

    def __post_init__(self) -> None:
        if min(self.incidents, self.evidence, self.queue) < 1 or self.bytes < 256 << 10:
            raise ValueError("at least one of each is kept, in at least 256 KiB")


class RecordedDecision(msgspec.Struct, frozen=True):
    """A decision on an incident, an action, or its outcome."""

    at: float
    """UNIX seconds."""
    kind: str
    text: str
    data: dict[str, Any]


class IncidentSummary(msgspec.Struct, frozen=True):
    """An incident as one line of a list. ``began`` and ``ended`` are UNIX seconds."""

    id: str
    began: float
    ended: float
    fault_class: FaultClass
    gpu: str | None
    lane: str | None
    culprit: Suspect | None
    culprit_command: str | None
    """The culprit's command line, unverified, if it was a known client."""
    candidates: tuple[Suspect, ...]
    victims: tuple[Suspect, ...]
    confidence: Confidence
    reason: str
    xids: tuple[int, ...]
    survived: tuple[Suspect, ...] = ()


class RecordedIncident(msgspec.Struct, frozen=True):
    """An incident with what is needed to understand it after its processes have ended or the machine was rebooted."""

    id: str
    boot_id: str
    wall_offset: float
    """Added to a CLOCK_MONOTONIC time of the incident it gives UNIX seconds."""
    recorded_at: float
    updated_at: float
    incident: Incident
    clients: tuple[Client, ...]
    """Those of its processes that were known clients."""
    decisions: tuple[RecordedDecision, ...]
    versions: dict[str, str]
    """Versions of the guard, the kernel and the driver at the time of recording."""
    evidence_left_out: int
    """Number of pieces of evidence that exceeded the limits; the first and the last ones are kept."""


class Bundle(msgspec.Struct, frozen=True):
    """One incident for export: the verdict, and all the evidence that triage needs to reproduce it."""

    version: int
    exported_at: float
    record: RecordedIncident
    evidence: tuple[Evidence, ...]
    """In the order of observation: the incident's own, that around it, and the arrivals of clients then on a lane."""
    dropped: int
    """Number of records this guard dropped since it started: if not 0, evidence may be missing."""
