"""The configuration: decodes TOML into frozen types. Each error is one line with file, key, and what is allowed."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from mpsguard.model import LaneSettings

DEFAULT_PATH: Final = Path("/etc/mpsguard/mpsguard.toml")
DEFAULT_RUN_DIRECTORY: Final = "/run/mpsguard"

Seconds = Annotated[float, Meta(gt=0, le=86400)]
Hold = Annotated[float, Meta(ge=0, le=86400)]
Count = Annotated[int, Meta(ge=1, le=65536)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]

_LIMIT: Final = re.compile(r"^[1-9][0-9]{0,8}[GM]$")
_GPU: Final = re.compile(r"^(all|[0-9]{1,3}|GPU-[0-9a-fA-F-]{1,40}|MIG-[0-9a-zA-Z/-]{1,80})$")

_SUN_PATH: Final = 107
"""Most bytes of a socket path (unix(7)); the longest name in a pipe directory is that of the privileged socket."""


class ConfigError(Exception):
    """The configuration is invalid; one line says file, key, and what is allowed."""


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
    sentinel: bool = False
    """Keep an idle process of the guard on the lane while it has clients, which helps to name the culprit of an SM
    fault. It takes the place of one client, and the memory of a context on each GPU (docs/guides/sm-faults.md)."""
    unwatched: Literal["serve", "refuse"] = "serve"
    """What happens to a client that cannot be watched (docs/concepts/security.md): its faults would not be seen, and
    its end may harm others. With ``refuse`` its next connection is refused: it gets no context, and is not ended."""
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
    """Members may use the control API, besides root."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The guard's own log, on standard error."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: `console` on a terminal, else `json`."""
    metrics_address: str | None = None
    """``HOST:PORT`` on which Prometheus metrics are served; unset: only `mpsguard-ctl metrics`."""


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


def load(path: Path | None) -> Config:
    """Return the configuration in ``path``; if None, that in the default file if it exists, else the built-in defaults.

    Raises:
        ConfigError: the file cannot be read, or is invalid.
    """
    if path is None:
        if not DEFAULT_PATH.exists():
            return validated(Config(), "built-in defaults")
        path = DEFAULT_PATH
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(text, str(path))


def parse(text: bytes, source: str) -> Config:
    """Return the configuration in a TOML text; ``source`` is the name used in messages. Raises ConfigError."""
    try:
        config = msgspec.toml.decode(text, type=Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_explain(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    return validated(config, source)


def validated(config: Config, source: str) -> Config:
    """Return ``config`` if its values are consistent; raise ConfigError otherwise."""
    try:
        for key in ("run_directory", "state_directory", "log_directory"):
            _check_absolute(f"guard.{key}", getattr(config.guard, key))
        if config.guard.core_directory is not None:
            _check_absolute("guard.core_directory", config.guard.core_directory)
        if config.guard.metrics_address is not None:
            split_address(config.guard.metrics_address)
        if not config.domain:
            raise ConfigError("domain: at least one [[domain]] is needed")
        for index, domain in enumerate(config.domain):
            _check_domain(f"domain[{index}]", domain, config.guard)
        for key in ("name", "pipe_directory"):
            values = [os.path.normpath(getattr(domain, key)) for domain in config.domain]
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ConfigError(f"domain.{key}: {twice!r} stands in two domains; each needs its own")
        _check_gpus_apart(config.domain)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return config


def split_address(address: str) -> tuple[str, int]:
    """Return the parts of ``HOST:PORT``; raise ConfigError if it is malformed."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"guard.metrics_address: {address!r} is not HOST:PORT with a port from 1 to 65535")
    return host.strip("[]"), int(port)


def lane_directory(guard: GuardConfig, domain: DomainConfig, index: int = 0) -> Path:
    """Return the directory of a lane of ``domain``; its private pipe directory is ``pipe`` in it."""
    return Path(guard.run_directory) / "lanes" / f"{domain.name}-{index}"


def standby_directory(pipe_directory: str) -> Path:
    """Return the pipe directory for the standbys of a domain with this public directory."""
    return Path(pipe_directory) / "standby"


def find_control_binary(domain: DomainConfig) -> str:
    """Return the absolute path of the domain's control daemon; raise ConfigError if there is none."""
    found = shutil.which(domain.control_binary)
    if found is None:
        raise ConfigError(
            f"domain.control_binary: {domain.control_binary!r} is no executable file"
            f"{'' if '/' in domain.control_binary else ' on PATH'}; install the NVIDIA driver's MPS or name its path"
        )
    return str(Path(found).absolute())


def _check_domain(key: str, domain: DomainConfig, guard: GuardConfig) -> None:
    _check_absolute(f"{key}.pipe_directory", domain.pipe_directory)
    public = standby_directory(domain.pipe_directory) if domain.standby else Path(domain.pipe_directory)
    for directory in (public, lane_directory(guard, domain) / "pipe"):
        longest = len(os.fsencode(directory / "control_privileged"))
        if longest > _SUN_PATH:
            raise ConfigError(
                f"{key}.pipe_directory: the socket path in {str(directory)!r} would have {longest} bytes; "
                f"at most {_SUN_PATH} are possible"
            )
    inside = os.path.commonpath([os.path.normpath(domain.pipe_directory), os.path.normpath(guard.run_directory)])
    if inside == os.path.normpath(guard.run_directory):
        raise ConfigError(f"{key}.pipe_directory: must not lie inside guard.run_directory ({guard.run_directory!r})")
    if not domain.gpus or ("all" in domain.gpus and len(domain.gpus) > 1):
        raise ConfigError(f'{key}.gpus: ["all"] alone, or a list of GPU numbers or UUIDs')
    for gpu in domain.gpus:
        if not _GPU.match(gpu):
            raise ConfigError(f'{key}.gpus: {gpu!r} is neither "all", a GPU number, nor a UUID (GPU-..., MIG-...)')
    _check_settings(f"{key}.settings", domain.settings)
    for name in Remedies.__struct_fields__:
        remedies = [step.remedy for step in getattr(domain.remedies, name)]
        twice = next((remedy for remedy in remedies if remedies.count(remedy) > 1), None)
        if twice is not None:
            raise ConfigError(f"{key}.remedies.{name}: {twice!r} stands there twice; once for each class of faults")


def _check_gpus_apart(domains: Sequence[DomainConfig]) -> None:
    """No GPU may be in two domains: their servers would time-slice it, and a fault of either would stop both."""
    assigned: dict[str, str] = {}
    for index, domain in enumerate(domains):
        for gpu in domain.gpus:
            other = next((name for each, name in assigned.items() if gpu == each or "all" in (gpu, each)), None)
            if other is not None:
                raise ConfigError(
                    f"domain[{index}].gpus: {gpu!r} is also in domain {other!r}; each GPU may be in one domain only"
                )
        twice = next((gpu for gpu in domain.gpus if domain.gpus.count(gpu) > 1), None)
        if twice is not None:
            raise ConfigError(f"domain[{index}].gpus: {twice!r} stands there twice")
        assigned |= dict.fromkeys(domain.gpus, domain.name)


def _check_settings(key: str, settings: LaneSettings) -> None:
    share = settings.active_thread_percentage
    if share is not None and not 0 < share <= 100:
        raise ConfigError(f"{key}.active_thread_percentage: {share} is not above 0 and at most 100")
    if settings.client_priority not in (None, 0, 1):
        raise ConfigError(f"{key}.client_priority: {settings.client_priority} is neither 0 (normal) nor 1 (below)")
    for device, limit in settings.pinned_device_memory_limit.items():
        if not _GPU.match(device) or device == "all":
            raise ConfigError(f"{key}.pinned_device_memory_limit: {device!r} is neither a GPU number nor a UUID")
        if not _LIMIT.match(limit):
            raise ConfigError(
                f'{key}.pinned_device_memory_limit.{device}: {limit!r} is no whole number with G or M, such as "8G"'
            )


def _check_absolute(key: str, path: str) -> None:
    if not Path(path).is_absolute() or "\0" in path or "\n" in path:
        raise ConfigError(f"{key}: {path!r} is not an absolute path")


_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$?\.?(?P<where>[^`]*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `([^`]*)`")
_INDEX: Final = re.compile(r"\[(\d+|\.\.\.)\]")
_SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "": Config,
    "guard": GuardConfig,
    "vault": VaultConfig,
    "domain[]": DomainConfig,
    "domain[].settings": LaneSettings,
    "domain[].policy": Policy,
    "domain[].lifelines": LifelineConfig,
    "domain[].remedies": Remedies,
    **{f"domain[].remedies.{name}[]": Step for name in Remedies.__struct_fields__},
}


def sections() -> dict[str, type[msgspec.Struct]]:
    """Return the type of each section, by its path in the file (``domain[].policy``)."""
    return dict(_SECTIONS)


def _explain(message: str) -> str:
    """Return msgspec's message with the key first, and with the allowed values if a key or a value is unknown."""
    match = _AT.match(message)
    assert match is not None
    what, where = match["what"], match["where"] or ""
    unknown = _UNKNOWN.match(what)
    if unknown:
        section = _SECTIONS.get(_INDEX.sub("[]", where))
        allowed = f"; allowed here: {', '.join(section.__struct_fields__)}" if section else ""
        return f"{where + '.' if where else ''}{unknown[1]}: unknown key{allowed}"
    if what.startswith("Invalid enum value"):
        parent, _, field = where.rpartition(".")
        section = _SECTIONS.get(_INDEX.sub("[]", parent))
        if section is not None:
            words = get_args(get_type_hints(section)[field])
            return f"{where}: {what.removeprefix('Invalid enum value ')} is none of {', '.join(words)}"
    what = what[:1].lower() + what[1:]
    return f"{where}: {what}" if where else what
