"""Evidence: one observation by one sensor. What triage works on, what the journal keeps, and what replays.

Clocks: ``observed_at`` and ``happened_at`` are seconds of CLOCK_MONOTONIC, the clock of the kernel log and of this
guard; wall-clock time is only ever shown. A source with a clock of its own is brought onto it by its sensor, which says
how far that may be off in ``uncertainty``.
"""

from enum import StrEnum

import msgspec

from mpsguard.model import ProcessKey


class Source(StrEnum):
    """Where an observation comes from."""

    UVM = "uvm"
    """The UVM tools queue of one client's address space."""
    KERNEL_LOG = "kmsg"
    NVML = "nvml"
    SERVER_LOG = "serverlog"
    CONTROL_LOG = "controllog"
    PROCESSES = "procs"
    GPU_CORE = "gpucore"
    """GPU core dumps: a client's own, where it opted in, or that of the lane's sentinel."""
    LANE = "lane"
    """The guard's own watch over control daemons and servers."""
    KMOD = "kmod"
    """The patched nvidia-uvm module."""


class Trust(StrEnum):
    """How far the process that an observation names can be trusted to be the one that did it."""

    PROOF = "proof"
    """It cannot have been another one: the observation is of this process and no other."""
    HINT = "hint"
    """The source says so, and has been right."""
    NONE = "none"
    """The source names a process for reasons of its own, or nobody."""


class UvmFault(msgspec.Struct, frozen=True, tag="uvm_fault"):
    """A GPU fault in one client's address space."""

    address: int
    access: str
    """read, write, atomic, prefetch, or unknown(N)."""
    fault_type: str
    """The driver's fault type, or unknown(N)."""
    fatal: bool


class ZoneHit(msgspec.Struct, frozen=True, tag="zone_hit"):
    """An access outside an allocation that a zone absorbed: nobody was hurt, and what was read or written is void."""

    address: int
    access: str
    region: int
    """The region's number, counted by the program."""
    part: str
    """front zone or back zone."""
    beyond: int
    """Bytes past the end (1: the first one behind it), or before the start (negative)."""
    size: int
    """Bytes that the program had asked for."""


class FaultContained(msgspec.Struct, frozen=True, tag="fault_contained"):
    """A fatal fault that the patched nvidia-uvm kept with its client: the first one in that address space."""

    address: int
    access: str
    fault_type: str
    engine: str
    """sm or copy."""


class Xid(msgspec.Struct, frozen=True, tag="xid"):
    """An NVRM Xid line of the kernel log, or an NVML event with an Xid number."""

    number: int
    pid: int | None
    """The pid the line names; under MPS an innocent's for Xid 31 and the server's for 43."""
    text: str
    """The rest of the line, printable and cut."""
    channel: int | None = None
    gpc: int | None = None
    tpc: int | None = None
    sm: int | None = None


class SmError(msgspec.Struct, frozen=True, tag="sm_error"):
    """An SM stopped at an instruction, as a GPU core dump tells; whose that is, the processes' memory maps tell."""

    why: str
    """The SM's exception in words."""
    pc: int
    """The instruction's address in its process' address space."""
    holders: tuple[ProcessKey, ...]
    """The clients that had this address reserved for the GPU when the fault was seen."""
    exact: tuple[ProcessKey, ...]
    """Those of them where the reserved range looks like one that CUDA makes for code."""
    unread: tuple[ProcessKey, ...]
    """Clients whose memory maps could not be read in time."""
    writer: ProcessKey | None = None
    """The client that wrote the dump; None: the lane's sentinel did."""


class OwnDump(msgspec.Struct, frozen=True, tag="own_dump"):
    """What a client's own GPU core dump says of its own work."""

    raised: bool
    """Whether a thread of its kernels has an exception."""
    grids: int
    """Kernels of it that were on the GPU."""


class ServerSays(msgspec.Struct, frozen=True, tag="server_says"):
    """A line of server.log or control.log that tells of a fault."""

    what: str
    """fault_begins, fault_ends, culprit, sticky, teardown, server_exited."""
    server: int
    client: int | None = None
    lane: str | None = None
    """Whose log it is in; None in records of old."""


class ProcessEnded(msgspec.Struct, frozen=True, tag="process_ended"):
    """A client's end."""

    exit_code: int | None
    signal: int | None
    oom_killed: bool
    work_in_flight: bool | None
    """Whether kernels may have been running; None if that cannot be known."""
    servers: tuple[int, ...] = ()
    """Pids of its lane's servers, as last seen: the kernel log calls work that outlives its client theirs."""
    kept: bool = False
    """Whether its address space was kept (a lifeline): work that it left behind ends without a trace."""
    execed: str | None = None
    """Its command line as a client, if it lives on and executes another program: the CUDA process has ended then, with
    whatever it had open."""


class ClientCame(msgspec.Struct, frozen=True, tag="client_came"):
    """A client is on a lane from now on: whom triage may suspect and count as a victim."""

    domain: str
    lane: str
    uid: int | None = None
    """Its user, who has a share of what is kept; None in records of old."""


class LaneChanged(msgspec.Struct, frozen=True, tag="lane_changed"):
    """A lane's control daemon or server came, faulted or ended."""

    domain: str
    lane: str
    state: str
    reason: str
    servers: tuple[int, ...] | None = None
    """Pids of its servers then; None in records of old."""


class DeviceHealth(msgspec.Struct, frozen=True, tag="device_health"):
    """ECC, row-remap, retired-page or recovery-action news of a whole GPU."""

    what: str
    value: int
    fatal: bool


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A sensor knows that it missed ``count`` observations (-1: an unknown number)."""

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
    | LaneChanged
    | DeviceHealth
    | Lost
)


class Evidence(msgspec.Struct, frozen=True):
    """One observation: when, on which GPU, what, about whom if it says, and how far that can be trusted."""

    source: Source
    observed_at: float
    what: Observation
    happened_at: float | None = None
    """When it happened, if the source says more than when it was seen."""
    uncertainty: float = 0.0
    """Seconds by which ``happened_at`` may be off, either way."""
    gpu: str | None = None
    """PCI address as the kernel log has it (``0000:18:00``), or None if the source does not say."""
    process: ProcessKey | None = None
    """The process the observation is about, if the source names one that lives or lived under our eyes."""
    trust: Trust = Trust.NONE
    serial: str = ""
    """The source's own number for it (kernel log sequence, queue index): the same observation is never taken twice."""
