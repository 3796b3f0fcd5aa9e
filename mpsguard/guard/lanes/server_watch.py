"""The servers of a lane under watch: which there are and in what state, asked on demand and followed in their log."""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path
from typing import Final

from mpsguard.guard import daemon_log
from mpsguard.guard.lanes import lane_state
from mpsguard.guard.lanes.command import CommandReply
from mpsguard.guard.model import LaneState, Server
from mpsguard.linux.files.inotify import FileWatch
from mpsguard.linux.files.log_tail import LogTail
from mpsguard.linux.identity import PID_LIMIT
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.stat_reader import StatReader

_PID = re.compile(r"^\s*([1-9][0-9]{0,9})\s*$", re.ASCII)
_UNKNOWN_COMMAND = 'Unknown command "get_server_status"'

_MOST_IN_FAULT = 64
"""A lane has one server at a time; a user that can write to its log can make up others, and push out the oldest."""

Ask = Callable[[str], Awaitable[CommandReply]]
_TRUSTED: Final = 1.0
"""Seconds for which the daemon's answer holds, as long as the server's log does not object."""

_TRUSTED_WITH_LOG: Final = 20.0
"""The same while a server can be seen to write its log: longer than `check_interval` is by default, so that the start
of a program does not wait for a question (a millisecond)."""

_ROOM: Final = 1 << 20
"""Bytes that must be free where the log is: a server goes on without a word when it cannot write."""


class LogHint(Enum):
    """What a line of server.log says about the server."""

    FAULT_BEGINS = "fault begins"
    FAULT_ENDS = "fault ends"


_HINTS: Final = {
    daemon_log.BEGINS: LogHint.FAULT_BEGINS,
    daemon_log.UNDER_WAY: LogHint.FAULT_BEGINS,
    daemon_log.ENDS: LogHint.FAULT_ENDS,
    daemon_log.NEW_CONTEXT: LogHint.FAULT_ENDS,
}


def hint(line: str) -> tuple[int, LogHint] | None:
    """The server's pid and what ``line`` of server.log says of it, or None if it says nothing of use.

    `guard.daemon_log` has the words. A line that is not known means nothing: the log only ever prompts a question to
    the control daemon, or answers for drivers without ``get_server_status`` (535).
    """
    parsed = daemon_log.parse_line(line)
    meaning = None if parsed is None else daemon_log.meaning(parsed)
    if parsed is None or meaning is None or meaning.what not in _HINTS:
        return None
    return parsed.pid, _HINTS[meaning.what]


def pids(reply: CommandReply) -> list[int]:
    """Return the pids that a list has; a line that is none, or a pid that no process can have, costs itself alone."""
    found = (int(match[1]) for match in map(_PID.match, reply.lines) if match)
    return [pid for pid in found if pid < PID_LIMIT]


class Servers:
    """Owns a handle on every server of the lane; ``ended`` is called with the pid of each that has ended."""

    def __init__(self, ask: Ask, ended: Callable[[int], None], stats: StatReader) -> None:
        self._ask = ask
        self._ended = ended
        self._stats = stats
        self._handles: dict[int, ProcessHandle] = {}
        self._in_fault: dict[int, None] = {}
        """Servers in fault by their log; only believed where the driver has no get_server_status."""
        self._status_known = True

    def close(self) -> None:
        """Give all handles back."""
        for pid in list(self._handles):
            self._drop(pid)
        self._in_fault.clear()
        self._status_known = True

    def note(self, pid: int, hint: LogHint) -> None:
        """Take in what server.log says of a server."""
        if hint is LogHint.FAULT_BEGINS:
            self._in_fault[pid] = None
            if len(self._in_fault) > _MOST_IN_FAULT:
                del self._in_fault[next(iter(self._in_fault))]
        else:
            self._in_fault.pop(pid, None)

    async def observe(self) -> tuple[Server, ...]:
        """The servers and their states, asked now. Raises what asking raises."""
        for pid in [pid for pid, handle in self._handles.items() if not handle.alive()]:
            self._gone(pid)
        if not self._handles:
            await self._list()
        seen = [await self._state(pid) for pid in list(self._handles)]
        if None in seen:
            # The control daemon no longer knows one of them: see which there are now.
            await self._list()
            seen = [await self._state(pid) for pid in list(self._handles)]
        return tuple(server for server in seen if server is not None)

    async def clients(self) -> dict[int, int]:
        """Client pid to server pid, as the control daemon lists them now."""
        await self._list()
        found: dict[int, int] = {}
        for pid in list(self._handles):
            reply = await self._ask(f"get_client_list {pid}")
            found.update(dict.fromkeys(pids(reply), pid))
        return found

    async def _list(self) -> None:
        reply = await self._ask("get_server_list")
        listed = set(pids(reply))
        for pid in set(self._handles) - listed:
            self._gone(pid)
        for pid in listed - set(self._handles):
            try:
                handle = await self._stats.hold(pid)
            except (ProcessLookupError, TimeoutError):
                continue
            if pid in self._handles:
                handle.close()
                continue
            self._handles[pid] = handle
            asyncio.get_running_loop().add_reader(handle.fileno(), self._gone, pid)

    async def _state(self, pid: int) -> Server | None:
        handle = self._handles.get(pid)
        if handle is None:
            return None
        word = "FAULT" if pid in self._in_fault else "ACTIVE"
        if self._status_known:
            reply = await self._ask(f"get_server_status {pid}")
            said = [line.strip() for line in reply.lines] or [""]
            if any(line.startswith(_UNKNOWN_COMMAND) for line in said):
                self._status_known = False
            elif any("not found" in line for line in said):
                return None
            else:
                word = next((line for line in said if line in lane_state.WORDS), said[0])
        return Server(handle.key, word)

    def _gone(self, pid: int) -> None:
        self._drop(pid)
        self._ended(pid)

    def _drop(self, pid: int) -> None:
        handle = self._handles.pop(pid, None)
        self._in_fault.pop(pid, None)
        if handle is not None:
            asyncio.get_running_loop().remove_reader(handle.fileno())
            handle.close()


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
        hints = [found for found in map(hint, lines) if found]
        for pid, meaning in hints:
            self._servers.note(pid, meaning)
        if hints:
            self._overheard = time.monotonic()
        return bool(hints)


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
