"""Preflight: checks a configuration against this machine before anything is started."""

import grp
from pathlib import Path
from typing import Final

from mpsguard.guard import config
from mpsguard.guard.config import Config, ConfigError
from mpsguard.linux.files.directory import Directory

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
            _check_directory(f"guard.{key}", Path(path), shared=key == "core_directory")
    for index, domain in enumerate(settings.domain):
        _check_directory(f"domain[{index}].pipe_directory", Path(domain.pipe_directory))


def _check_directory(key: str, path: Path, *, shared: bool = False) -> None:
    """Raise ConfigError unless the directory exists, or can be created, and no other user could change it."""
    for there in (path, *path.parents):
        if there in _KERNELS_OWN:
            raise ConfigError(f"{key}: {str(path)!r} lies in {there}, where no directory can be made")
    try:
        Directory.open(path, shared=shared).close()
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise ConfigError(f"{key}: {error.filename!r} is there and is no directory") from None
    except OSError as error:
        raise ConfigError(f"{key}: {error.filename or str(path)!r}: {error.strerror}") from None
