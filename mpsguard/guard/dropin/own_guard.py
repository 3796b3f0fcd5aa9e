"""The configuration of a guard that a drop-in starts for a pipe directory by itself."""

import errno
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import tomli_w

from mpsguard.guard import config
from mpsguard.guard.config import DEFAULT_PATH, NO_ADDRESS, ConfigError
from mpsguard.guard.dropin import pipe_directory as pipes
from mpsguard.guard.dropin import start_environment
from mpsguard.linux.files.directory import Directory

CHAIN: Final = "MPSGUARD_STARTED_BY_DROPIN"
"""In the environment of a guard that a drop-in has started, and so of its lanes. Were a drop-in to be taken for the
vendor's program, each would start a guard that starts a drop-in, without end."""
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ASKED: Final = (start_environment.PERCENTAGE, start_environment.PRIORITY, start_environment.LIMITS, _VISIBLE)
"""Variables that a guard takes at its start, and no later."""
_ADDRESS: Final = "MPSGUARD_METRICS_ADDRESS"
"""Names `metrics_address` of such a guard; by default none, as there may be many on one machine."""

_MODE: Final = 0o711
"""Of the directories: other users' programs connect to names that they know."""
_LONGEST_SOCKET: Final = "lanes/default-0/pipe/control_privileged"
"""Below the run directory."""
_NAME: Final = 12
_DIRECTORY: Final = ".mpsguard"
"""In the pipe directory: it goes with the directory (a claim's, say), and two that have the same path in two mount
namespaces do not meet."""


class OwnGuard(NamedTuple):
    """What a guard of a drop-in is started with."""

    config: Path
    logs: Path
    """Where `mpsguard.log` belongs."""
    notes: tuple[str, ...]
    """What is not as it was asked for, in one line each."""


def prepare(directory: Path, environment: Mapping[str, str], *, multiuser: bool) -> OwnGuard:
    """Prepare a guard of the pipe directory for the variables of the vendor's daemon in ``environment``.

    Its configuration is the machine's own file if that has the directory, else one that is written into the directory.

    Raises:
        ConfigError: the directory cannot be served, or this is a lane of such a guard.
        OSError: the directory cannot be made.
    """
    if CHAIN in environment:
        raise ConfigError(
            "this nvidia-cuda-mps-control is mpsguard's own, and a guard has started it as a lane: name the vendor's "
            "in control_binary (MPSGUARD_CONTROL_BINARY), or put its directory on PATH"
        )
    logs = pipes.log_directory(environment)
    if DEFAULT_PATH.exists():
        served = {os.path.realpath(domain.pipe_directory) for domain in config.load(DEFAULT_PATH).domain}
        if os.path.realpath(directory) in served:
            return OwnGuard(DEFAULT_PATH, logs, ())
    _make(directory, pipes.PIPES)
    base = directory / _DIRECTORY
    notes = []
    unusable = _unusable(logs)
    if unusable is not None:
        # As the vendor's daemon, which then has none.
        logs = base / "log"
        notes.append(f"{pipes.LOGS}: {unusable}; the logs are in {logs}")
        Directory.make(logs, _MODE).close()
    guard = {
        "run_directory": str(_run_directory(directory, environment)),
        "state_directory": str(base / "state"),
        "log_directory": str(logs),
        "metrics_address": environment.get(_ADDRESS, NO_ADDRESS),
    }
    initial = start_environment.initial_settings(environment)
    domain = {
        "pipe_directory": str(directory),
        # Where the variable shows no GPU, the lane's server inherits it as it is.
        "gpus": start_environment.visible_gpus(environment.get(_VISIBLE)) or ["all"],
        "multiuser": multiuser,
        "control_binary": environment.get("MPSGUARD_CONTROL_BINARY", "nvidia-cuda-mps-control"),
        "settings": initial.settings,
    }
    return OwnGuard(write(base, {"guard": guard, "domain": [domain]}), logs, (*notes, *initial.notes))


def _run_directory(directory: Path, environment: Mapping[str, str]) -> Path:
    """Return the run directory for a pipe directory: in it, or where its sockets' paths would be too long, elsewhere.

    Then a link leads there from where it would be. Its name comes from the pipe directory's inode too: the same path in
    another mount namespace is another directory.
    """
    inside = directory / _DIRECTORY / "run"
    if len(os.fsencode(inside / _LONGEST_SOCKET)) <= pipes.SUN_PATH:
        return inside
    user = os.geteuid()
    home = "/run" if user == 0 else environment.get("XDG_RUNTIME_DIR") or "/tmp"  # noqa: S108 - `Directory` looks at it
    found = directory.stat()
    name = hashlib.sha256(f"{found.st_dev}:{found.st_ino}:".encode() + os.fsencode(directory)).hexdigest()[:_NAME]
    elsewhere = Path(home) / f"mpsguard-{user}" / name
    # Both: a process of another user than root looks at the last directory alone, and any user can write in /tmp.
    for each in (elsewhere.parent, elsewhere):
        Directory.make(each, _MODE).close()
    with Directory.make(inside.parent, _MODE) as base:
        base.link(inside.name, str(elsewhere))
    return elsewhere


def write(base: Path, settings: Mapping[str, Any]) -> Path:
    """Write a configuration into ``base``, after it was found valid, and return the file; ConfigError, OSError."""
    text = tomli_w.dumps(settings)
    path = base / "mpsguard.toml"
    config.parse(text.encode(), str(path))
    with Directory.make(base, _MODE) as directory:
        directory.write(path.name, text.encode(), 0o600)
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
    with Directory.open(directory) as opened:
        for name in ("control.log", "server.log"):
            opened.link(name, os.path.relpath(lane_logs / name, directory))


def _make(directory: Path, variable: str) -> None:
    """Make the directory if need be; ConfigError if another user could change it or where its path leads, OSError."""
    try:
        Directory.make(directory, _MODE).close()
    except PermissionError as error:
        # The kernel's own refusal, where this user may not make it, is EACCES.
        if error.errno != errno.EPERM:
            raise
        reason = f"{error.filename}: {error.strerror}; remove it, or name another directory in {variable}"
        raise ConfigError(reason) from None


def _unusable(logs: Path) -> str | None:
    """Make the log directory if need be, and return why this user cannot write there, or None.

    ConfigError if another user could change it or where its path leads.
    """
    try:
        _make(logs, pipes.LOGS)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None if os.access(logs, os.W_OK | os.X_OK) else f"{logs}: {os.strerror(errno.EACCES)}"
