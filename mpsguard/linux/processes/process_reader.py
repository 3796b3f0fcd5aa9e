"""/proc files of strangers, read where a read that never ends can be killed.

``environ``, ``cmdline`` and ``maps`` take the memory-map lock of the process, and a process can hold its own for as
long as it likes (a page fault on a file system of its making). The wait for it ends with SIGKILL of the reader. So
children read, each for one caller at a time; one that exceeds the deadline is killed and replaced.
"""

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.reading_child import ReadingChild
from mpsguard.linux.side_threads import NoThreadError, NoTurnError, SharedThreads
from mpsguard.linux.user_share import Place, UserShare

DEADLINE: Final = 1.0
"""Seconds for one process: a read takes well below a millisecond, also on a busy machine some ten."""
_CHILDREN: Final = 8
"""At most; each takes some 8 MiB."""
_SHARE: Final = 2
"""Of them, for one uid at a time: four hostile ones are needed to keep all, for a second."""
_STANDING: Final = 2
"""Of them, started at once and kept: a burst of clients has more for as long as it lasts."""
_PATIENCE: Final = 2.0
"""Seconds that a caller waits for its turn before the answer is that nothing is known."""
_CHILD: Final = Path(__file__).with_name("process_reader_child.py")
_MAX_ENVIRON: Final = 1 << 20
_MAX_CGROUP: Final = 1 << 16
_MAX_HEADER: Final = 4096


class Told(msgspec.Struct, frozen=True):
    """What a process' files in /proc say of it; empty where nothing could be read in time."""

    command: str = ""
    cgroup: str = ""
    environment: Mapping[str, str] = {}


UNKNOWN: Final = Told()


class _Child(ReadingChild):
    """Answers one caller after the other."""

    def __init__(self) -> None:
        super().__init__(_CHILD, socket.SOCK_STREAM)

    def ask(self, pid: int, files: Mapping[str, int], names: Sequence[str], due: float) -> list[bytes | None]:
        """The files' beginnings; TimeoutError at ``due``, EOFError or OSError if the child is of no use."""
        self.socket.settimeout(max(due - time.monotonic(), 0.001))
        limits = ",".join(f"{name}={limit}" for name, limit in files.items())
        self.socket.sendall(f"{pid} {limits} {','.join(names)}\n".encode("ascii"))
        got = bytearray()
        while b"\n" not in got:
            self._more(got, _MAX_HEADER, due)
        header, _, rest = bytes(got).partition(b"\n")
        lengths = [int(length) for length in header.split(b",")]
        body = bytearray(rest)
        while len(body) < sum(length for length in lengths if length > 0):
            self._more(body, 1 << 20, due)
        found: list[bytes | None] = []
        at = 0
        for length in lengths:
            found.append(None if length < 0 else bytes(body[at : at + length]))
            at += max(length, 0)
        return found

    def _more(self, got: bytearray, limit: int, due: float) -> None:
        left = due - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)
        data = self.socket.recv(limit)
        if not data:
            raise EOFError
        got += data


class ProcessReader:
    """Owns the reading children. `read` may be called from any thread; it blocks for deadline and patience at most."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        """``deadline``: seconds for one process."""
        self._deadline = deadline
        self._turn = threading.Condition()
        self._kept = 1
        self._idle: list[_Child] = []
        self._share: UserShare[int] = UserShare(_CHILDREN, _SHARE)
        self._lost = 0
        self._closed = False
        self.killed = 0
        """Children that exceeded the deadline."""

    def start(self, children: int) -> None:
        """Start so many children now, and keep so many from now on; without this call one is kept."""
        self._kept = children
        for _ in range(children):
            try:
                child = _Child()
            except OSError:
                # For want of descriptors or memory: a later read tries again.
                return
            self._keep(child)

    def read(self, pid: int, uid: int, files: Mapping[str, int], names: Sequence[str] = ()) -> list[bytes | None]:
        """The beginnings of some of a process' /proc files, None for what could not be read in time.

        Of ``environ`` only the variables ``names``. ``uid``: the user to the share of which it counts.
        """
        nothing: list[bytes | None] = [None] * len(files)
        place = self._take_turn(uid)
        if place is None:
            return nothing
        child: _Child | None = None
        try:
            with self._turn:
                child = self._idle.pop() if self._idle else None
            child = child or _Child()
            found = child.ask(pid, files, names, time.monotonic() + self._deadline)
        except (OSError, EOFError, ValueError):
            self._abandon(child)
            return nothing
        except BaseException:
            # Ctrl-C: its answer would be that to the next request.
            self._abandon(child)
            raise
        else:
            self._keep(child)
            return found
        finally:
            with self._turn:
                place.give_back()
                self._turn.notify_all()

    def tell(self, pid: int, uid: int, names: Sequence[str]) -> Told:
        """Command line, cgroup and some variables of a process."""
        files = {"cmdline": procfs.MAX_COMMAND * 4, "cgroup": _MAX_CGROUP, "environ": _MAX_ENVIRON}
        command, cgroup, environ = self.read(pid, uid, files, names)
        return Told(
            procfs.command_of(command or b""), procfs.cgroup_of(cgroup or b""), procfs.environment_of(environ or b"")
        )

    def close(self) -> None:
        """End the children that read nothing now; those that do end with what they read. Safe to call twice."""
        with self._turn:
            self._closed = True
            idle, self._idle = self._idle, []
            self._turn.notify_all()
        for child in idle:
            child.close()

    def _take_turn(self, uid: int) -> Place | None:
        """Wait for a place; None if there is none in time, or all is closed."""
        place: Place | None = None

        def ready() -> bool:
            nonlocal place
            place = None if self._closed else self._share.take(uid)
            return self._closed or place is not None

        with self._turn:
            self._turn.wait_for(ready, _PATIENCE)
        return place

    def _keep(self, child: _Child) -> None:
        with self._turn:
            if not self._closed and len(self._idle) < self._kept:
                self._idle.append(child)
                return
        child.close()

    def _abandon(self, child: _Child | None) -> None:
        gone = child is None or child.close()
        with self._turn:
            self.killed += child is not None
            if not gone:
                self._lost += 1
                self._share.resize(_CHILDREN - self._lost, _SHARE)


class LoopReader:
    """A `ProcessReader` for an event loop: it reads on threads, as many as there are children.

    The threads are kept once they were needed. Starting one takes the loop as long as the new thread takes to get its
    turn, half a millisecond of each handshake.
    """

    def __init__(self) -> None:
        self.reader: Final = ProcessReader()
        self._threads: SharedThreads[int] = SharedThreads("process-reader", _CHILDREN, _SHARE)

    def start(self) -> None:
        """Start the children that are kept; see `ProcessReader.start`."""
        self.reader.start(_STANDING)

    async def tell(self, pid: int, uid: int, names: Sequence[str]) -> Told:
        """See `ProcessReader.tell`; UNKNOWN at once if as many of the user's wait already as can be read in time.

        A read that has begun keeps its user's place until it ends, also when nothing waits for its answer any more.
        """
        if self._threads.waiting(uid) >= _MAX_WAITING:
            return UNKNOWN
        try:
            return await self._threads.call(uid, partial(self.reader.tell, pid, uid, tuple(names)), _PATIENCE)
        except (NoTurnError, NoThreadError):
            return UNKNOWN

    def close(self) -> None:
        """See `ProcessReader.close`; a thread that waits for a child has its deadline."""
        self.reader.close()
        self._threads.close(0.0)


_MAX_WAITING: Final = 64
"""Processes of one uid that wait to be read: a burst of a user's clients fits."""
