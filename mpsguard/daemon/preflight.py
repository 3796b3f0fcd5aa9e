"""Preflight: checks a configuration against this machine before anything is started."""

import grp
from pathlib import Path
from typing import Final

from mpsguard import config
from mpsguard.config import Config, ConfigError

_KERNELS_OWN: Final = tuple(map(Path, ("/proc", "/sys")))
"""Directories of the kernel, in which no directory can be created."""


def check(settings: Config) -> None:
    """Raise ConfigError for the first setting that a guard could not start with; change nothing."""
    guard = settings.guard
    for domain in settings.domain:
        config.find_control_binary(domain)
    if guard.group is not None:
        try:
            grp.getgrnam(guard.group)
        except KeyError:
            raise ConfigError(f"guard.group: no group {guard.group!r} on this machine") from None
    for key in ("run_directory", "state_directory", "log_directory", "core_directory"):
        path = getattr(guard, key)
        if path is not None:
            _check_directory(f"guard.{key}", Path(path))
    for index, domain in enumerate(settings.domain):
        _check_directory(f"domain[{index}].pipe_directory", Path(domain.pipe_directory))


def _check_directory(key: str, path: Path) -> None:
    """Raise ConfigError unless the directory exists, or can be created."""
    for there in (path, *path.parents):
        if there in _KERNELS_OWN:
            raise ConfigError(f"{key}: {str(path)!r} lies in {there}, where no directory can be made")
        try:
            if there.exists() and not there.is_dir():
                raise ConfigError(f"{key}: {str(there)!r} is there and is no directory")
        except OSError as error:
            raise ConfigError(f"{key}: {str(there)!r} cannot be looked at: {error.strerror}") from None
