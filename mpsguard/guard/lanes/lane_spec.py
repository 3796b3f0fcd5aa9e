"""What a lane is made of, and its directories with the users that may pass through them.

No client needs the private pipe directory: it gets its socket to the server in the handshake, from the guard. A server
does: it registers at ``control`` by path. Without -M it runs as its clients' user, but the control daemon changes its
uid alone (setuid(2); no setgid or setgroups in 535 and 550), so that it keeps the daemon's group. That group may pass;
a user's own processes may not, though /proc/net/unix tells every user the path.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.guard.lanes.control_process import Launch
from mpsguard.linux.files.directory import Directory

_FOR_THE_GROUP: Final = 0o710
_FOR_US: Final = 0o700
_LOGS: Final = 0o711
"""The logs are not secret; the vendor's daemon writes them for every user to read. Their names are known, and a user
that may list the directory could keep the daemon from making them."""


class LaneSpec(msgspec.Struct, frozen=True):
    """What a lane is made of; times in seconds."""

    name: str
    domain: str
    pipe_directory: Path
    log_directory: Path
    control_binary: str
    multiuser: bool
    gpus: tuple[str, ...]
    command_deadline: float
    start_deadline: float
    check_interval: float
    restart_burst: int
    restart_window: float

    @property
    def launch(self) -> Launch:
        """What it takes to start the control daemon."""
        return Launch(
            name=self.name,
            pipe_directory=str(self.pipe_directory),
            log_directory=str(self.log_directory),
            control_binary=self.control_binary,
            multiuser=self.multiuser,
            gpus=self.gpus,
            start_deadline=self.start_deadline,
        )


def make_directories(pipe_directory: Path, log_directory: Path, *, multiuser: bool) -> None:
    """Make what is missing, with the modes that the lane needs; raises OSError."""
    for directory, mode in _modes(pipe_directory, multiuser):
        with Directory.make(directory, _FOR_US) as made:
            made.allow(mode, os.getegid())
    with Directory.make(log_directory, _LOGS) as logs:
        logs.narrow(_LOGS)


def shut_directories(pipe_directory: Path, *, multiuser: bool) -> None:
    """Shut out users that an earlier version let pass; what is missing stays missing. Raises OSError."""
    for directory, mode in _modes(pipe_directory, multiuser):
        with suppress(FileNotFoundError), Directory.open(directory) as there:
            there.allow(mode, os.getegid())


def _modes(pipe_directory: Path, multiuser: bool) -> Iterator[tuple[Path, int]]:
    # With -M the server is root, and where there is one user only it is ours.
    passable = _FOR_THE_GROUP if os.geteuid() == 0 else _FOR_US
    private = _FOR_US if multiuser else passable
    yield pipe_directory.parent.parent, passable
    yield pipe_directory.parent, private
    yield pipe_directory, private
