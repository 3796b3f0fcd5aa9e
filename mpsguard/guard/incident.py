"""Incidents: the verdicts on faults, with their evidence."""

from enum import StrEnum

import msgspec

from mpsguard.guard.evidence import Evidence
from mpsguard.linux.identity import ProcessKey


class FaultClass(StrEnum):
    """The class of a fault according to the evidence, not to an application's error."""

    MMU = "mmu"
    SM = "sm"
    MMU_OR_SM = "mmu_or_sm"
    """A server had a fault, and nothing tells a memory fault from one inside a kernel: no Xid, UVM event or dump."""
    ENGINE = "engine"
    PROCESS = "process"
    LANE = "lane"
    DEVICE = "device"


class Confidence(StrEnum):
    """The confidence in the verdict on the culprit."""

    PROVEN = "proven"
    """The evidence can only be of this process."""
    LIKELY = "likely"
    """The source has been right so far, and no evidence contradicts it."""
    UNKNOWN = "unknown"
    """There are candidates at most; `Incident.reason` says why no more is known."""


class Ground(StrEnum):
    """The kind of evidence that names a culprit. `mpsguard.guard.triage.grounds` has the worth of each."""

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
    REPEATED_ALONE = "repeated_alone"
    REPEATED_ALONE_WORD = "repeated_alone_word"


class Suspect(msgspec.Struct, frozen=True):
    """A process in an incident. ``process`` is None if only a pid is known."""

    pid: int
    process: ProcessKey | None
    client: bool
    """Whether it is, or was, a client of one of the guard's lanes."""


class Incident(msgspec.Struct, frozen=True):
    """A verdict. Times are CLOCK_MONOTONIC seconds, as in the evidence."""

    fault_class: FaultClass
    began: float
    """Time of its first event."""
    ended: float
    """When its last event so far was observed."""
    gpu: str | None
    lane: str | None
    """The lane of all clients involved; None if they are on several, or there is none."""
    culprit: Suspect | None
    candidates: tuple[Suspect, ...]
    """The processes that may have caused it, if the culprit is not known."""
    victims: tuple[Suspect, ...]
    """The clients that lost their work by the fault."""
    confidence: Confidence
    reason: str
    """One sentence: the basis of the verdict, or why the culprit is not known."""
    xids: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    """In order of time."""
    work_in_flight: bool | None = None
    """For class PROCESS: whether the client's work continued after its end; None while that is not known."""
    ground: Ground | None = None
    """The kind of evidence that names the culprit; None if none is named, and in old records."""
    survived: tuple[Suspect, ...] = ()
    """The clients that the fault hit, and that their second drivers took over to another lane."""
    revision: int = 1
    """The number of this verdict on the incident, counted from 1."""
