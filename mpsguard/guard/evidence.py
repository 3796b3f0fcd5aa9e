"""Evidence: one observation by one sensor. It is the input of triage, and the journal stores it for replay.

Clocks: ``observed_at`` and ``happened_at`` are seconds of CLOCK_MONOTONIC, the clock of the kernel log and of the
guard; wall-clock time is for display only. If a source has its own clock, its sensor converts the times, and gives
their error in ``uncertainty``.
"""

from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.linux.identity import ProcessKey


class Source(StrEnum):
    """The source of an observation."""

    UVM = "uvm"
    """The UVM tools queue of one client's address space."""
    KERNEL_LOG = "kmsg"
    NVML = "nvml"
    SERVER_LOG = "serverlog"
    CONTROL_LOG = "controllog"
    PROCESSES = "procs"
    GPU_CORE = "gpucore"
    """GPU core dumps: a client's own, if it opted in, or that of the lane's sentinel."""
    LANE = "lane"
    """The guard's own supervision of control daemons and servers."""
    KMOD = "kmod"
    """The patched nvidia-uvm module."""
    PRELOAD = "preload"
    """What a program under the preload says of itself, in its own memory."""


class Trust(StrEnum):
    """How far the process that an observation names can be trusted to be the culprit."""

    PROOF = "proof"
    """The observation can only be of this process."""
    HINT = "hint"
    """The source names the process as the culprit, and has been right."""
    NONE = "none"
    """The source names a process for another reason, or no process."""


class UvmFault(msgspec.Struct, frozen=True, tag="uvm_fault"):
    """A GPU fault in one client's address space."""

    address: int
    access: str
    """read, write, atomic, prefetch, or unknown(N)."""
    fault_type: str
    """The driver's fault type, or unknown(N)."""
    fatal: bool


class ZoneHit(msgspec.Struct, frozen=True, tag="zone_hit"):
    """An access outside an allocation that a zone absorbed: it harmed no client, and the data are void."""

    address: int
    access: str
    region: int
    """The region's number, counted by the program."""
    part: str
    """front zone or back zone."""
    beyond: int
    """Bytes past the end (1: the first byte after it), or before the start (negative)."""
    size: int
    """Bytes that the program had requested."""


class FaultContained(msgspec.Struct, frozen=True, tag="fault_contained"):
    """A fatal fault that the patched nvidia-uvm contained: the first one in that address space."""

    address: int
    access: str
    fault_type: str
    engine: str
    """sm or copy."""


class Xid(msgspec.Struct, frozen=True, tag="xid"):
    """An NVRM Xid line of the kernel log, or an NVML event with an Xid number."""

    number: int
    pid: int | None
    """The pid in the line; under MPS mostly an innocent client's for Xid 31, and the server's for Xid 43."""
    text: str
    """The rest of the line, made printable and cut."""
    channel: int | None = None
    gpc: int | None = None
    tpc: int | None = None
    sm: int | None = None


SM_XIDS: Final = frozenset({13, 43})
"""What the kernel log says first of an SM fault (43 alone: `trap`)."""


class SmError(msgspec.Struct, frozen=True, tag="sm_error"):
    """An SM stopped at an instruction, according to a GPU core dump; clients' memory maps tell which process' it is."""

    why: str
    """The name of the SM's exception."""
    pc: int
    """The instruction's address in its process' address space."""
    holders: tuple[ProcessKey, ...]
    """The clients that had this address reserved for the GPU when the fault was seen."""
    exact: tuple[ProcessKey, ...]
    """The holders with a reserved range like those that CUDA creates for code."""
    unread: tuple[ProcessKey, ...]
    """Clients with memory maps that could not be read in time."""
    writer: ProcessKey | None = None
    """The client that wrote the dump; None: the lane's sentinel did."""


class OwnDump(msgspec.Struct, frozen=True, tag="own_dump"):
    """The content of a client's own GPU core dump about its own work."""

    raised: bool
    """Whether a thread of its kernels has an exception."""
    grids: int
    """Number of its kernels that were on the GPU."""


class ServerSays(msgspec.Struct, frozen=True, tag="server_says"):
    """A line of server.log or control.log about a fault."""

    what: str
    """fault_begins, fault_ends, culprit, sticky, teardown, server_exited."""
    server: int
    client: int | None = None
    lane: str | None = None
    """The lane that has this log; None in old records."""


class ProcessEnded(msgspec.Struct, frozen=True, tag="process_ended"):
    """A client's end."""

    exit_code: int | None
    signal: int | None
    oom_killed: bool
    work_in_flight: bool | None
    """Whether kernels may have been running; None if that cannot be known."""
    servers: tuple[int, ...] = ()
    """Pids of its lane's servers, as last seen: the kernel log attributes work that outlives its client to them."""
    kept: bool = False
    """Whether its address space was kept (a lifeline): then work that it left on the GPU ends without a trace."""
    execed: str | None = None
    """Its command line as a client, if the process executed another program: this ends the CUDA process, and closes its
    descriptors."""


class ClientCame(msgspec.Struct, frozen=True, tag="client_came"):
    """The arrival of a client on a lane: from now on it can be a suspect or a victim."""

    domain: str
    lane: str
    uid: int | None = None
    """The client's user, for shares of bounded resources; None in old records."""


class SecondDriverCame(msgspec.Struct, frozen=True, tag="second_driver_came"):
    """A client's second driver was passed on to another lane: from now on the client may have work on both."""

    lane: str


class WentOver(msgspec.Struct, frozen=True, tag="went_over"):
    """A client's second driver took it over after a fault of the client's lane: its work is on another one.

    The client says so; the guard has passed the second driver on, and seen the fault.
    """

    lane: str
    was: str
    """The lane that faulted."""


class WorkRepeated(msgspec.Struct, frozen=True, tag="work_repeated"):
    """A client's own word: after a fault of its lane it repeats its work in flight alone, outside of MPS."""

    outcome: str
    """under_way; completed, faulted or no_result."""


class ServerEnding(msgspec.Struct, frozen=True, tag="server_ending"):
    """The guard tells a server to end that had a fatal fault: its clients went over to another lane, or ended."""

    lane: str
    server: int


class LaneChanged(msgspec.Struct, frozen=True, tag="lane_changed"):
    """A lane's control daemon or server started, faulted or ended."""

    domain: str
    lane: str
    state: str
    reason: str
    servers: tuple[int, ...] | None = None
    """Pids of its servers at that time; None in old records."""
    fault_asked: float | None = None
    """CLOCK_MONOTONIC seconds when the last answer that told of a fault was asked for; None in old records."""


class DeviceHealth(msgspec.Struct, frozen=True, tag="device_health"):
    """A change of a GPU's ECC, row-remap, retired-page or recovery-action state."""

    what: str
    value: int
    fatal: bool


class LogRead(msgspec.Struct, frozen=True, tag="log_read"):
    """All lines of the log that were written from ``since`` to this observation have been told, without a gap."""

    since: float
    """CLOCK_MONOTONIC seconds."""


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A sensor missed ``count`` observations (-1: an unknown number)."""

    count: int


Observation = (
    UvmFault
    | FaultContained
    | ZoneHit
    | Xid
    | ServerSays
    | SmError
    | OwnDump
    | ProcessEnded
    | ClientCame
    | SecondDriverCame
    | WentOver
    | WorkRepeated
    | ServerEnding
    | LaneChanged
    | DeviceHealth
    | LogRead
    | Lost
)


class Evidence(msgspec.Struct, frozen=True):
    """One observation: its times, its GPU, its content, and the process that it names, with the trust in that."""

    source: Source
    observed_at: float
    what: Observation
    happened_at: float | None = None
    """When it happened, if the source tells."""
    uncertainty: float = 0.0
    """Seconds by which ``happened_at`` may be off, either way."""
    gpu: str | None = None
    """PCI address in the kernel log's form (``0000:18:00``), or None if the source does not tell."""
    process: ProcessKey | None = None
    """The process that the observation is about, if the source names one that the guard knows or knew."""
    trust: Trust = Trust.NONE
    serial: str = ""
    """The source's own number for it (kernel log sequence, queue index), which identifies copies of one observation."""
