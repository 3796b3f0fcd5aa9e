"""The configuration's types: one for each section of the file, with defaults and meanings."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from mpsguard.guard.config.classes import Objective, ServiceClass
from mpsguard.guard.model import LaneSettings

DEFAULT_RUN_DIRECTORY: Final = "/run/mpsguard"

DEFAULT_ADDRESS: Final = "127.0.0.1:16770"
"""Loopback, and a port of our own: outside of what exporters use (9100 to 10100, and some from 19000 on), of the
node ports of Kubernetes (from 30000 on), and of the ports that Linux gives to clients (from 32768 on)."""
NO_ADDRESS: Final = "off"

Seconds = Annotated[float, Meta(gt=0, le=86400)]
Hold = Annotated[float, Meta(ge=0, le=86400)]
Count = Annotated[int, Meta(ge=1, le=65536)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits and deadlines of one domain; times in seconds."""

    max_connections: Count = 4096
    """Connections held at once on the public sockets; beyond that, the one that has been silent longest is evicted."""
    max_parked: Count = 512
    """Clients held back at once while the lane is not ready; further ones get what stock MPS would give."""
    park_deadline: Seconds = 60.0
    """How long a client is held back before it gets what stock MPS would give."""
    handshake_deadline: Seconds = 10.0
    """How long a peer may take over its side of the handshake."""
    command_deadline: Seconds = 5.0
    """How long the control daemon may take to answer the guard."""
    user_command_deadline: Seconds = 60.0
    """How long it may take to answer a user's command; only `quit` may take longer, until its clients have ended."""
    command_line_idle: Seconds = 600.0
    """How long a command line may wait for its user's next command; it is evicted earlier if places run out."""
    privileged_containers: bool = False
    """Whether root of a container that has CAP_SYS_ADMIN in the guard's user namespace, as a privileged one has, may
    give the commands that root may. The device plugin's pod needs it (docs/guides/drop-ins.md)."""
    start_deadline: Seconds = 30.0
    """How long the control daemon may take to come up."""
    check_interval: Seconds = 15.0
    """How often the lane's state is queried if no event triggers a query."""
    restart_burst: Count = 5
    """Starts of the control daemon allowed within `restart_window`; beyond that the lane is flapping."""
    restart_window: Seconds = 60.0
    """See `restart_burst`."""


class LifelineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the address spaces of ended clients are kept at most, in seconds; 0: not at all."""

    crash_hold: Hold = 10.0
    """For a client that ended by a signal or with a status other than 0."""
    exit_hold: Hold = 0.0
    """For a client that exited with status 0. With 0, its GPU memory is free at once, but work it left on the GPU ends
    the others."""
    overdue: Literal["release", "keep"] = "release"
    """What happens to a lifeline after its time if the GPUs have not been idle since: it is released, or with ``keep``
    reported (event ``lifeline_overdue``) and held until they are idle, or an operator releases it."""


RemedyName = Literal["terminate"]


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One remedy for a class of faults."""

    remedy: RemedyName
    """`terminate`: end the culprit without harm to the other clients."""
    mode: Literal["off", "observe", "enforce"] = "observe"
    """With `observe`, the journal only records what the remedy would have done."""
    at_least: Literal["proven", "likely"] = "proven"
    """Confidence in the culprit that a remedy needs to end it."""
    grace: Seconds = 5.0
    """Seconds from SIGTERM to SIGKILL."""


_TERMINATE: Final = (Step("terminate"),)


class Remedies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The remedies for each fault class (docs/guides/policy.md). By default, those that end a process are observed."""

    mmu: tuple[Step, ...] = _TERMINATE
    """Memory faults: Xid 31, and faults in the clients' UVM queues."""
    sm: tuple[Step, ...] = _TERMINATE
    """Faults inside a kernel: Xid 13 and 43."""
    mmu_or_sm: tuple[Step, ...] = ()
    """One of these two, where neither the kernel log nor a UVM event queue tells which."""
    engine: tuple[Step, ...] = _TERMINATE
    """Faults of copy and other engines."""
    process: tuple[Step, ...] = ()
    """The process has ended already."""
    lane: tuple[Step, ...] = ()
    """The control daemon or its server ended; the lane is always started again."""
    device: tuple[Step, ...] = ()
    """The GPU itself: ECC, bus, firmware."""


class DomainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One public pipe directory, the GPUs behind it, and how they are run."""

    name: Name = "default"
    """In commands, metrics and log lines; also the name of its directory below `run_directory`."""
    pipe_directory: str = "/run/nvidia-mps"
    """The value for CUDA_MPS_PIPE_DIRECTORY; absolute, and outside of `run_directory`."""
    gpus: tuple[str, ...] = ("all",)
    """`["all"]`, or GPU numbers and UUIDs (`GPU-...`, `MIG-...`)."""
    multiuser: bool = False
    """Start the control daemon with -M, so that clients of different users share one server."""
    control_binary: str = "nvidia-cuda-mps-control"
    """The stock control daemon: a name on PATH, or a path."""
    simulated: bool = False
    """The control daemon is a simulation, as in `make demo`: there is no GPU, and no sensor for one is needed."""
    standby: bool = False
    """Run a second lane, for standbys, behind ``standby`` in the pipe directory (docs/guides/standby.md)."""
    second_driver: Literal["off", "cold", "hot"] = "cold"
    """With ``standby``: whether clients may connect a second driver to the other lane, behind ``second`` in the pipe
    directory (docs/guides/second-driver.md): after a fault of their lane (``cold``), or before it too (``hot``), when
    it could carry work. Root and the guard's user may do that with ``cold`` too."""
    repetition: Literal["alone", "beside"] = "alone"
    """With ``second_driver``: where a client does work in flight again that a fault took from it
    (docs/concepts/repetition.md). ``alone``: outside of MPS, unless it is proven innocent, so that a culprit hurts no
    lane. ``beside``: on the other lane, where all programs are trusted not to fault."""
    sentinel: bool = False
    """Keep an idle process of the guard on the lane while it has clients, which helps to name the culprit of an SM
    fault. It takes the place of one client, and the memory of a context on each GPU (docs/guides/sm-faults.md)."""
    unwatched: Literal["serve", "refuse"] = "serve"
    """What happens to a client that cannot be watched (docs/concepts/security.md): its faults would not be seen, and
    its end may harm others. With ``refuse`` its next connection is refused: it gets no context, and is not ended."""
    classes: tuple[ServiceClass, ...] = msgspec.field(default=(), name="class")
    objectives: tuple[Objective, ...] = msgspec.field(default=(), name="objective")
    settings: LaneSettings = LaneSettings()
    policy: Policy = Policy()
    lifelines: LifelineConfig = LifelineConfig()
    remedies: Remedies = Remedies()


class GuardConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the guard as a whole."""

    run_directory: str = DEFAULT_RUN_DIRECTORY
    """The guard's own sockets and the lanes' private pipe directories."""
    state_directory: str = "/var/lib/mpsguard"
    """The journal, and the settings of lanes."""
    log_directory: str = "/var/log/mpsguard"
    """The lanes' control.log and server.log, a directory for each lane."""
    core_directory: str | None = None
    """Where clients write their GPU core dumps, if they opt in, as ``core.PID`` (docs/guides/sm-faults.md)."""
    group: str | None = None
    """Members may use the control API and the whole page, besides root."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The guard's own log, on standard error."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: `console` on a terminal, else `json`."""
    metrics_address: str = DEFAULT_ADDRESS
    """``HOST:PORT`` on which HTTP serves ``/metrics`` (Prometheus), ``/livez`` and ``/readyz`` (docs/guides/probes.md),
    and a page without what is private (docs/guides/page.md), to every process that can connect; ``off``: nothing is
    served there. An address that is in use is tried again."""
    metrics_names: tuple[str, ...] = ()
    """Further names by which ``metrics_address`` is asked for, such as that of a Service. Asked by localhost, an IP
    address, the host in ``metrics_address`` or the machine's host name, HTTP always answers; by any other name never
    (docs/guides/probes.md)."""
    simulated_driver: bool = False
    """Take pseudoterminals of simulated programs for GPU address spaces, so that they have lifelines as in ``make
    demo``. All domains must be ``simulated``."""


class VaultConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The vault: GPU memory that outlives its process."""

    enabled: bool = True
    """Whether sessions and regions can be created."""
    bytes_per_user: Annotated[int, Meta(ge=0)] = 1 << 40
    """Bytes of all regions of one user together."""
    host_bytes_per_user: Annotated[int, Meta(ge=0)] = 1 << 30
    """The part of these bytes that may be host memory, including state buffers: it outlives its process."""
    regions_per_user: Count = 1024
    """Regions of all sessions of one user."""
    chunks_per_user: Count = 8192
    """Chunks of one user; each costs the guard and its descriptor storage a descriptor."""
    simulated: bool = False
    """Host memory may stand for GPU memory: for machines without a GPU."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole configuration file."""

    guard: GuardConfig = GuardConfig()
    domain: tuple[DomainConfig, ...] = (DomainConfig(),)
    vault: VaultConfig = VaultConfig()
