"""The configuration of a guard that a drop-in starts for a pipe directory by itself."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tomli_w

from mpsguard import config
from mpsguard.config import DEFAULT_PATH, NO_ADDRESS, ConfigError
from mpsguard.config.values import is_gpu
from mpsguard.dropin import pipe_directory as pipes

CHAIN: Final = "MPSGUARD_STARTED_BY_DROPIN"
"""In the environment of a guard that a drop-in has started, and so of its lanes. Were a drop-in to be taken for the
vendor's program, each would start a guard that starts a drop-in, without end."""
_ADDRESS: Final = "MPSGUARD_METRICS_ADDRESS"
"""Names `metrics_address` of such a guard; by default none, as there may be many on one machine."""

_DIRECTORY: Final = ".mpsguard"
"""In the pipe directory: it goes with the directory (a claim's, say), and two that have the same path in two mount
namespaces do not meet."""


def prepare(environment: Mapping[str, str], *, multiuser: bool) -> Path:
    """Return the configuration file for a guard of the pipe directory that ``environment`` names.

    That is the machine's own file if it has the directory, else one that is written into the directory.

    Raises:
        ConfigError: the directory cannot be served, or this is a lane of such a guard.
        OSError: the directory cannot be made.
    """
    if CHAIN in environment:
        raise ConfigError(
            "this nvidia-cuda-mps-control is mpsguard's own, and a guard has started it as a lane: name the vendor's "
            "in control_binary (MPSGUARD_CONTROL_BINARY), or put its directory on PATH"
        )
    directory = pipes.pipe_directory(environment)
    if DEFAULT_PATH.exists():
        served = {os.path.normpath(domain.pipe_directory) for domain in config.load(DEFAULT_PATH).domain}
        if os.path.normpath(directory) in served:
            return DEFAULT_PATH
    _make_safe(directory)
    base = directory / _DIRECTORY
    guard = {
        "run_directory": str(base / "run"),
        "state_directory": str(base / "state"),
        "log_directory": str(pipes.log_directory(environment)),
        "metrics_address": environment.get(_ADDRESS, NO_ADDRESS),
    }
    domain = {
        "pipe_directory": str(directory),
        "gpus": _gpus(environment.get("CUDA_VISIBLE_DEVICES")),
        "multiuser": multiuser,
        "control_binary": environment.get("MPSGUARD_CONTROL_BINARY", "nvidia-cuda-mps-control"),
    }
    return write(base, {"guard": guard, "domain": [domain]})


def write(base: Path, settings: Mapping[str, Any]) -> Path:
    """Write a configuration into ``base``, after it was found valid, and return the file; ConfigError, OSError."""
    text = tomli_w.dumps(settings)
    path = base / "mpsguard.toml"
    config.parse(text.encode(), str(path))
    base.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text(text)
    return path


def link_logs(path: Path) -> None:
    """Put `control.log` and `server.log`, which other programs read, into the log directory of a guard.

    Only of one with a single domain, as the others have a log directory for each. The links are relative: a pod reads
    them from outside of the root that the guard runs in.
    """
    settings = config.load(path)
    if len(settings.domain) == 1:
        logs = Path(settings.guard.log_directory)
        link_lane_logs(logs, logs / config.lane_directory(settings.guard, settings.domain[0]).name)


def link_lane_logs(directory: Path, lane_logs: Path) -> None:
    """Link a lane's logs into ``directory``, relative, in place of what has their names there."""
    for name in ("control.log", "server.log"):
        link = directory / name
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(lane_logs / name, directory))


def _make_safe(directory: Path) -> None:
    """Make the directory if need be; ConfigError if another user could replace what is in it."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise ConfigError(
            f"{directory}: must be a directory of root's or of this user's in which no other user may write"
        )


def _gpus(visible: str | None) -> list[str]:
    """Return the domain's GPUs for a CUDA_VISIBLE_DEVICES; ConfigError if it names something else."""
    if not visible or visible == "all":
        return ["all"]
    gpus = [each.strip() for each in visible.split(",")]
    wrong = next((each for each in gpus if not is_gpu(each)), None)
    if wrong is not None:
        raise ConfigError(f"CUDA_VISIBLE_DEVICES: {wrong!r} is neither a GPU number nor a UUID (GPU-..., MIG-...)")
    return gpus
