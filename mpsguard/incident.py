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


class Ground(StrEnum):
    """The kind of evidence that names a culprit. `mpsguard.triage.grounds` says what each is worth."""

    UVM_QUEUE = "uvm_queue"
    UVM_QUEUE_NEWCOMER = "uvm_queue_newcomer"
    CAME_BACK = "came_back"
    CONTAINED = "contained"
    CONTAINED_PID = "contained_pid"
    ZONE = "zone"
    OWN_DUMP = "own_dump"
    OWN_DUMP_UNVERIFIED = "own_dump_unverified"
    SENTINEL_PLACE = "sentinel_place"
    CLIENT_PLACE = "client_place"
    LONE_KERNEL = "lone_kernel"
    ONLY_CLIENT = "only_client"
    OWN_END = "own_end"
    LEFT_SERVER = "left_server"
    LEFT_ALONE = "left_alone"
    KERNEL_PID = "kernel_pid"


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
    ground: Ground | None = None
    """The kind of evidence that names the culprit; None where nobody is named, and in records of old."""
    revision: int = 1
    """The how manieth verdict on this incident it is, counted from 1."""
