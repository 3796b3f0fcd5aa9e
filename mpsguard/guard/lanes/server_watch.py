"""The servers of a lane under watch: asked on demand, and followed in their log in between."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mpsguard.guard.lanes import lane_state, server_log
from mpsguard.guard.lanes.servers import Ask, Servers
from mpsguard.guard.model import LaneState, Server
from mpsguard.linux.files.inotify import FileWatch
from mpsguard.linux.files.log_tail import LogTail
from mpsguard.linux.processes.stat_reader import StatReader

_TRUSTED: Final = 1.0
"""Seconds for which the daemon's answer holds, as long as the server's log does not object."""

_TRUSTED_WITH_LOG: Final = 20.0
"""The same while a server can be seen to write its log: longer than `check_interval` is by default, so that the start
of a program does not wait for a question (a millisecond)."""

_ROOM: Final = 1 << 20
"""Bytes that must be free where the log is: a server goes on without a word when it cannot write."""


class ServerWatch:
    """Owns what is held of a lane's servers and their log, from `begin` to `end` of one control daemon."""

    def __init__(
        self,
        log: Path,
        ask: Ask,
        prompted: Callable[[], None],
        stats: StatReader,
        *,
        ended: Callable[[int], None],
        heard: Callable[[str], None],
    ) -> None:
        """Create it; `begin` starts it.

        Args:
            log: server.log.
            ask: asks the control daemon.
            prompted: called when something happened that is worth asking about.
            stats: reads the servers' start times.
            ended: called with the pid of a server that has ended.
            heard: called with each line of the log.
        """
        self._path = log
        self._prompted = prompted
        self._ended = ended
        self._heard = heard
        self._servers = Servers(ask, self._gone, stats)
        self._tail: LogTail | None = None
        self._watch: FileWatch | None = None
        self._verified = -_TRUSTED
        """When the last question began that the daemon answered, on the monotonic clock."""
        self.fault_asked: float | None = None
        """When the last question began that was answered with a fault, on the same clock."""
        self._file: tuple[int, int] | None = None
        """Device and inode of the log that is watched."""
        self._overheard = 0.0
        """When the log last said something of the state, on the same clock."""

    def begin(self) -> None:
        """Watch the log of a control daemon that has just been found or started."""
        self._tail = LogTail(self._path)
        try:
            self._watch = FileWatch(self._path, self._log_grew)
            self._file = _identity(self._path)
        except OSError:
            # The daemon runs without logs where it cannot write them; asking it still tells.
            self._watch = None

    def end(self) -> None:
        """Give everything back; safe to call twice."""
        self._servers.close()
        self._verified = -_TRUSTED
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    async def observe(self) -> tuple[Server, ...]:
        """The servers and their states, asked now. Raises what asking raises."""
        self._overhear()
        began = time.monotonic()
        servers = await self._servers.observe()
        self._verified = began
        if lane_state.decide(servers)[0] is LaneState.FAULT:
            self.fault_asked = began
        return servers

    async def clients(self) -> dict[int, int]:
        """Client pid to server pid, as the control daemon lists them now; raises what asking raises."""
        return await self._servers.clients()

    def undisturbed(self) -> bool:
        """Whether the last answer still holds: it is a moment old, and the log says nothing since.

        A server writes its log line about a fault before it refuses the first client with 807 (580.159.04). Asking
        the daemon for every connection would cost each program's start a millisecond, and the daemon's log two lines.
        """
        if self._watch is None:
            return False
        self._overhear()
        if self._overheard > self._verified:
            return False
        age = time.monotonic() - self._verified
        return age < _TRUSTED or (age < _TRUSTED_WITH_LOG and self._is_written())

    def _is_written(self) -> bool:
        """Whether the log is still the file that is watched, and has room: not if it was moved, or the disk is full."""
        try:
            room = os.statvfs(self._path)
            return _identity(self._path) == self._file and room.f_bavail * room.f_frsize >= _ROOM
        except OSError:
            return False

    def _gone(self, pid: int) -> None:
        self._ended(pid)
        self._prompted()

    def _log_grew(self) -> None:
        if self._overhear():
            self._prompted()

    def _overhear(self) -> bool:
        """Take in new lines of the log; True if one of them says something of the state."""
        lines = self._tail.read() if self._tail else ()
        for line in lines:
            self._heard(line)
        hints = [found for found in map(server_log.hint, lines) if found]
        for pid, meaning in hints:
            self._servers.note(pid, meaning)
        if hints:
            self._overheard = time.monotonic()
        return bool(hints)


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
