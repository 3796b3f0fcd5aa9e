"""The private pipe directory of a lane. Its sockets are the control daemon's: the guard cannot make them again.

Sockets that have lost their names are reached by no client, and by no server that the daemon starts. The daemon still
listens, so the guard tells it to quit through the descriptors that it holds of them. The daemon does so when its
clients have ended, at once without any; then the lane is started anew, directory and all.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from mpsguard.guard.daemon.path_watch import PathError
from mpsguard.guard.lanes import command
from mpsguard.guard.lanes.command import Command, CommandFailedError
from mpsguard.guard.lanes.lane import Lane
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.files.path_state import PathState, Repair, change, decide
from mpsguard.linux.identity import ProcessKey

_ITSELF: Final = "."
_SOCKETS: Final = ("control", "control_privileged")
_QUIT_ANSWERED: Final = 1.0
"""Seconds for the answer to `quit`, which comes when the clients have ended: most of the time there is none."""


class _Names(NamedTuple):
    """What one control daemon has made, by name."""

    control: ProcessKey
    held: Mapping[str, int]
    """Descriptors (O_PATH)."""
    made: Mapping[str, PathState]


class LanePath:
    """What a control daemon has in its pipe directory; looked at anew for each daemon."""

    is_for_programs: bool = True

    def __init__(self, lane: Lane) -> None:
        self.path: Path = lane.spec.pipe_directory
        self._lane = lane
        self._learned: deque[_Names] = deque()
        """Of the daemons since the last look, from the event loop to the watch's thread, which closes them."""
        self._names: _Names | None = None
        """Of the last one of these."""
        self._has_quit = False

    def learn(self) -> None:
        """Take note of what a control daemon has made that has just been started or adopted; in the event loop."""
        control = self._lane.report.control
        if control is None:
            return
        held: dict[str, int] = {}
        with suppress(OSError):
            for name in (_ITSELF, *_SOCKETS):
                held[name] = os.open(self.path / name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._learned.append(_Names(control, held, {name: PathState.of(os.fstat(fd)) for name, fd in held.items()}))

    def changed(self) -> str | None:
        """See `OwnPath`."""
        while self._learned:
            before, self._names, self._has_quit = self._names, self._learned.popleft(), False
            close_all(before.held.values() if before is not None else ())
        if self._names is None or self._lane.report.control != self._names.control:
            # There is no daemon: the next one makes its own.
            return None
        for name in (_ITSELF, *_SOCKETS):
            made = self._names.made.get(name)
            what = "is gone" if made is None else change(made, _look(self.path / name))
            if what is not None:
                return what if name == _ITSELF else f"{name} {what}"
        return None

    def keeps_out(self) -> bool:
        """See `OwnPath`."""
        names = self._names
        if names is None:
            return False
        states = [(names.made.get(name), _look(self.path / name)) for name in (_ITSELF, *_SOCKETS)]
        return any(made is None or now is None or not now.is_same_object(made) for made, now in states)

    def mend(self) -> Callable[[], None]:
        """See `OwnPath`."""
        names = self._names
        assert names is not None, "nothing has changed"
        for name, made in names.made.items():
            if decide(made, _look(self.path / name)) is Repair.RESTORE:
                link = Path(f"/proc/self/fd/{names.held[name]}")
                os.chown(link, made.uid, made.gid)
                link.chmod(made.permissions)
        if not self.keeps_out():
            return lambda: None
        if not self._has_quit:
            self._quit(names)
        raise PathError(f"control daemon {names.control.pid} was told to quit; it is started again after its clients")

    def close(self) -> None:
        """See `OwnPath`."""
        while self._learned:
            close_all(self._learned.popleft().held.values())
        if self._names is not None:
            close_all(self._names.held.values())
            self._names = None

    def _quit(self, names: _Names) -> None:
        if "control_privileged" not in names.held:
            raise PathError(f"control daemon {names.control.pid} cannot be reached: end its clients, then itself")
        link = Path(f"/proc/self/fd/{names.held['control_privileged']}")
        try:
            asyncio.run(command.ask(self.path, Command("quit"), _QUIT_ANSWERED, socket_path=link))
        except command.CommandTimeoutError:
            # It waits for its clients.
            pass
        except CommandFailedError as error:
            raise PathError(f"control daemon {names.control.pid} cannot be told to quit: {error}") from None
        self._has_quit = True


def _look(path: Path) -> PathState | None:
    try:
        return PathState.of(path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return None
