"""The configuration: decodes TOML into frozen types. Each error is one line with file, key, and what is allowed."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.guard.config.classes import Objective, ServiceClass, check_classes, check_objectives
from mpsguard.guard.config.errors import ConfigError, explained
from mpsguard.guard.config.types import (
    NO_ADDRESS,
    Config,
    DomainConfig,
    GuardConfig,
    LifelineConfig,
    Policy,
    Remedies,
    Step,
    VaultConfig,
)
from mpsguard.guard.config.values import check_gpu, check_limit, is_gpu
from mpsguard.guard.model import LaneSettings

DEFAULT_PATH: Final = Path("/etc/mpsguard/mpsguard.toml")

_OWN: Final = b"mpsguard.guard.dropin"
_HEAD: Final = 1024
"""Bytes at the beginning of a start script, in which it names its module."""

_HOST_NAME: Final = re.compile(r"[0-9A-Za-z]([0-9A-Za-z_.-]{0,252}[0-9A-Za-z.])?")

_SUN_PATH: Final = 107
"""Most bytes of a socket path (unix(7)); the longest name in a pipe directory is that of the privileged socket."""


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
        raise ConfigError(f"{source}: {explained(str(error), _SECTIONS)}") from None
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
        if config.guard.metrics_address != NO_ADDRESS:
            split_address(config.guard.metrics_address)
        wrong = next((name for name in config.guard.metrics_names if not _HOST_NAME.fullmatch(name)), None)
        if wrong is not None:
            raise ConfigError(f"guard.metrics_names: {wrong!r} is no host name (without a port)")
        if config.guard.simulated_driver and not all(domain.simulated for domain in config.domain):
            raise ConfigError("guard.simulated_driver: every domain must have simulated = true")
        if not config.domain:
            raise ConfigError("domain: at least one [[domain]] is needed")
        for index, domain in enumerate(config.domain):
            _check_domain(f"domain[{index}]", domain, config.guard)
            if domain.objectives and not config.vault.enabled:
                raise ConfigError(f"domain[{index}].objective: requests are counted in the vault, which is off")
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
        allowed = "HOST:PORT with a port from 1 to 65535, nor off"
        raise ConfigError(f"guard.metrics_address: {address!r} is neither {allowed}")
    return host.strip("[]"), int(port)


def lane_directory(guard: GuardConfig, domain: DomainConfig, index: int = 0) -> Path:
    """Return the directory of a lane of ``domain``; its private pipe directory is ``pipe`` in it."""
    return Path(guard.run_directory) / "lanes" / f"{domain.name}-{index}"


def domain_of_lane(lane: str) -> str:
    """Return the domain that a lane with this name is of."""
    return lane.rpartition("-")[0]


def run_directory_of(pipe_directory: Path) -> Path | None:
    """Return the run directory of the guard that a pipe directory is a lane's of; None if it is no lane's.

    A lane outlives its guard, and the lock file of the domain stays, too (`public_lock`).
    """
    lane, lanes = pipe_directory.parent, pipe_directory.parent.parent
    if pipe_directory.name != "pipe" or lanes.name != "lanes":
        return None
    try:
        found = public_lock(lanes.parent, domain_of_lane(lane.name)).is_file()
    except OSError:
        # A run directory is closed to other users; a stock daemon's directory with these names would be a coincidence.
        found = True
    return lanes.parent if found else None


def public_lock(run_directory: Path, domain: str) -> Path:
    """Return the lock that the guard of a domain holds for as long as it lives."""
    return run_directory / f"{domain}.public.lock"


def standby_directory(pipe_directory: str) -> Path:
    """Return the pipe directory for the standbys of a domain with this public directory."""
    return Path(pipe_directory) / "standby"


def second_directory(pipe_directory: str) -> Path:
    """Return the pipe directory for the second drivers of a domain's clients."""
    return Path(pipe_directory) / "second"


def class_directory(pipe_directory: str, name: str) -> Path:
    """Return the pipe directory by which a program chooses a service class."""
    return Path(pipe_directory) / name


def find_control_binary(domain: DomainConfig) -> str:
    """Return the absolute path of the domain's control daemon; raise ConfigError if there is none.

    On PATH, mpsguard's own program of that name is passed over: it stands before the vendor's.
    """
    places = [None] if "/" in domain.control_binary else os.get_exec_path()
    every = (shutil.which(domain.control_binary, path=place) for place in places)
    found = next((each for each in every if each is not None and not _is_own(Path(each))), None)
    if found is None:
        raise ConfigError(
            f"domain.control_binary: {domain.control_binary!r} is no executable file"
            f"{'' if '/' in domain.control_binary else ' on PATH'}; install the NVIDIA driver's MPS or name its path"
        )
    return str(Path(found).absolute())


def _is_own(path: Path) -> bool:
    """Return whether a program is the start script of a drop-in."""
    try:
        with path.open("rb") as file:
            return _OWN in file.read(_HEAD)
    except OSError:
        return False


def _check_domain(key: str, domain: DomainConfig, guard: GuardConfig) -> None:
    _check_absolute(f"{key}.pipe_directory", domain.pipe_directory)
    public = standby_directory(domain.pipe_directory) if domain.standby else Path(domain.pipe_directory)
    chosen = [class_directory(domain.pipe_directory, each.name) for each in domain.classes]
    for directory in (public, *chosen, lane_directory(guard, domain) / "pipe"):
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
        if gpu != "all" and not is_gpu(gpu):
            raise ConfigError(f'{key}.gpus: {gpu!r} is neither "all", a GPU number, nor a UUID (GPU-..., MIG-...)')
    _check_settings(f"{key}.settings", domain.settings)
    check_classes(key, domain.classes, multiuser=domain.multiuser)
    check_objectives(key, domain.objectives, domain.classes)
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
        check_gpu(f"{key}.pinned_device_memory_limit", device)
        check_limit(f"{key}.pinned_device_memory_limit.{device}", limit)


def _check_absolute(key: str, path: str) -> None:
    if not Path(path).is_absolute() or "\0" in path or "\n" in path:
        raise ConfigError(f"{key}: {path!r} is not an absolute path")


_SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "": Config,
    "guard": GuardConfig,
    "vault": VaultConfig,
    "domain[]": DomainConfig,
    "domain[].class[]": ServiceClass,
    "domain[].objective[]": Objective,
    "domain[].settings": LaneSettings,
    "domain[].policy": Policy,
    "domain[].lifelines": LifelineConfig,
    "domain[].remedies": Remedies,
    **{f"domain[].remedies.{name}[]": Step for name in Remedies.__struct_fields__},
}


def sections() -> dict[str, type[msgspec.Struct]]:
    """Return the type of each section, by its path in the file (``domain[].policy``)."""
    return dict(_SECTIONS)
