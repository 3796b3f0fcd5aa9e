"""Incidents: evidence that belongs together, with a verdict."""

from enum import StrEnum

import msgspec

from mpsguard.evidence import Evidence
from mpsguard.model import ProcessKey


class FaultClass(StrEnum):
    """What the evidence says it was, not what an application saw."""

    MMU = "mmu"
    SM = "sm"
    ENGINE = "engine"
    PROCESS = "process"
    LANE = "lane"
    DEVICE = "device"


class Confidence(StrEnum):
    """How sure the verdict on the culprit is."""

    PROVEN = "proven"
    """Evidence that can be of no other process."""
    LIKELY = "likely"
    """A source that has been right so far, and nothing against it."""
    UNKNOWN = "unknown"
    """Candidates at most; `Incident.reason` says why no more is known."""


class Suspect(msgspec.Struct, frozen=True):
    """A process in an incident. ``process`` is None where only a pid was seen and nobody knows whose it was."""

    pid: int
    process: ProcessKey | None
    client: bool
    """Whether it is (or was) a client of a lane of ours."""


class Incident(msgspec.Struct, frozen=True):
    """A verdict. Times are CLOCK_MONOTONIC seconds, as in the evidence."""

    fault_class: FaultClass
    began: float
    """When the first thing in it happened."""
    ended: float
    """When the last thing in it was observed, so far."""
    gpu: str | None
    lane: str | None
    """That of all clients concerned; None if they are of several, or there is none."""
    culprit: Suspect | None
    candidates: tuple[Suspect, ...]
    """Who it may have been, where the culprit is not known."""
    victims: tuple[Suspect, ...]
    """Clients of the lane that the fault hit, or that stood in its way."""
    confidence: Confidence
    reason: str
    """One sentence: what the verdict rests on, or why there is none."""
    xids: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    """In the order in which things happened."""
    work_in_flight: bool | None = None
    """Of class PROCESS: whether the client's work ran on past its end; None while that cannot be known yet."""
