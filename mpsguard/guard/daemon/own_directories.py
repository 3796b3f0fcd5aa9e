"""The guard's own directories, which no other user may list: `run_directory`, `state_directory`.

Clients connect to names that they know. A process that may list a directory can hold its lock, and with it whatever
makes or removes a name there (docs/concepts/security.md).
"""

from pathlib import Path
from typing import Final

from mpsguard.linux.files.directory import Directory

_RUN: Final = 0o711
"""Every user's programs connect to the vault's socket."""
_STATE: Final = 0o700


def open_run(path: Path) -> Directory:
    """Return the run directory, made if it is missing; OSError, also if another user could change it."""
    return _open(path, _RUN)


def open_state(path: Path) -> Directory:
    """Return the state directory, made if it is missing; OSError as in `open_run`."""
    return _open(path, _STATE)


def open_lane_logs(path: Path) -> Directory:
    """Return the log directory of a lane, made if it is missing; OSError as in `open_run`."""
    return _open(path, _RUN)


def _open(path: Path, mode: int) -> Directory:
    directory = Directory.make(path, mode)
    try:
        directory.narrow(mode)
    except BaseException:
        directory.close()
        raise
    return directory
