"""Start times of strangers' processes, for an event loop: read where a read that never ends can be killed.

A read of ``/proc/PID/stat`` waits for a lock that an execve(2) of the process holds (Linux 6.18: ``do_task_stat`` takes
``exec_update_lock``) while it closes what is close-on-exec, and until it has let go of the old memory map: as long as a
file system of the process' making decides (FUSE). The same holds for ``PID/ns`` and for all else that asks whether one
process may look at another. No check beforehand helps, for the execve may come right after it. The wait ends with
SIGKILL of the reader. So children read, each for one caller at a time; one that exceeds the deadline is killed.

What never waits, and is for the event loop itself: whether a pidfd is readable, ``PID/status``, ``PID/cgroup``.
"""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle, open_pidfd
from mpsguard.linux.processes.reading_child import ReadingChild
from mpsguard.linux.user_queue import UserQueue
from mpsguard.linux.user_share import Place, UserShare

DEADLINE: Final = 1.0
"""Seconds for one process: a read takes some 20 us."""
PATIENCE: Final = 2.0
"""Seconds that a caller waits for its turn."""
_CHILDREN: Final = 8
"""At most; each takes some 8 MiB."""
_SHARE: Final = 2
"""Of them, for one uid at a time."""
_STANDING: Final = 2
"""Of them, started at once and kept."""
_MAX_WAITING: Final = 512
"""Reads of one uid that wait for their turn: as many as it may have clients."""
_HELD_UP: Final = 0.02
"""Seconds after which a child counts as held up, and another one is started for those that wait."""
_GIVES_WAY: Final = 0.1
"""Seconds after which, with all children in use, the read of the user that has most is ended for another user."""
_CHILD: Final = Path(__file__).with_name("stat_reader_child.py")
_BATCH: Final = 64
_PACKET: Final = 8192


class _Lookup:
    """Files of processes of one user, to be read by one child."""

    def __init__(self, uid: int, names: Sequence[str], answers: "asyncio.Future[list[bytes | None]]") -> None:
        self.uid = uid
        self.names = names
        self.answers = answers
        self.found: list[bytes | None] = []
        self.began = 0.0
        self.patience: asyncio.TimerHandle | None = None
        self.place: Place | None = None

    def over(self) -> None:
        """Tell the caller what was found: less than it asked for, if it took too long."""
        if self.patience is not None:
            self.patience.cancel()
        if not self.answers.done():
            self.answers.set_result(self.found)


class StatReader:
    """Owns the reading children. Its methods belong to one event loop."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        """``deadline``: seconds for one process."""
        self._deadline = deadline
        self._idle: list[ReadingChild] = []
        self._busy: dict[ReadingChild, _Lookup] = {}
        self._starting = 0
        self._lock = threading.Lock()
        """For the next two: threads start and end children."""
        self._all: set[ReadingChild] = set()
        self._closed = False
        self._lost = 0
        self._share: UserShare[int] = UserShare(sys.maxsize, _SHARE)
        """Of reads in progress. Children bound them in all; where all are in use, a user with a share left waits, and
        another one's read may give way."""
        self._waiting: UserQueue[int, _Lookup] = UserQueue()
        """Reads that wait."""
        self._check: asyncio.TimerHandle | None = None
        """The next look at those that wait."""
        self._late: asyncio.TimerHandle | None = None
        """The next look at those that are read: one timer for all, since nearly no read takes long."""
        self._threads = ThreadPoolExecutor(4, "stat-reader")
        """Starting a process, and reaping one, takes longer than a pass of the loop may."""
        self.killed = 0
        """Children that were killed over a read."""

    def start(self) -> None:
        """Start the children that are kept; without this call, they are started when they are needed."""
        for _ in range(_STANDING):
            with suppress(OSError):  # for want of descriptors or memory: a later read tries again
                self._join(self._make())

    def close(self) -> None:
        """End all children, and every read with nothing found; safe to call twice."""
        for timer in (self._check, self._late):
            if timer is not None:
                timer.cancel()
        for child in (*self._idle, *self._busy):
            asyncio.get_running_loop().remove_reader(child.socket.fileno())
        for request in self._busy.values():
            request.over()
        with self._lock:
            self._closed = True
            ending, self._all = self._all, set()
        for child in ending:
            child.close()
        for request in self._waiting.clear():
            request.over()
        self._busy.clear()
        self._idle.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # What others want to know.

    async def hold(self, pid: int, uid: int | None = None, pidfd: int | None = None) -> ProcessHandle:
        """Hold the process that has ``pid`` now, or that of ``pidfd``, which is taken over in any case.

        Args:
            pid: the process.
            uid: the user to the share of which the read counts; None: that of the process.
            pidfd: of the process; None: it is opened by ``pid``.

        Raises:
            ProcessLookupError: there is none, or it has ended.
            TimeoutError: its start time could not be read in time.
        """
        held = open_pidfd(pid) if pidfd is None else pidfd
        try:
            (stat,) = await self.stats([pid], procfs.uid(pid)[0] if uid is None else uid)
            if stat is None:
                raise TimeoutError(f"the start time of process {pid} could not be read in time")
            if not stat:
                raise ProcessLookupError(f"no process {pid}")
        except BaseException:
            os.close(held)
            raise
        about = procfs.stat_of(stat)
        return ProcessHandle.of_living(held, ProcessKey(pid, about.start_ticks), about.image)

    async def hold_this(self, process: ProcessKey) -> ProcessHandle:
        """Hold this very process; ProcessLookupError and TimeoutError as `hold`."""
        handle = await self.hold(process.pid)
        if handle.key != process:
            handle.close()
            raise ProcessLookupError(f"process {process.pid} is another one now")
        return handle

    async def key(self, pid: int) -> ProcessKey:
        """Return the identity of the process that holds ``pid`` now; ProcessLookupError and TimeoutError as `hold`."""
        with await self.hold(pid) as handle:
            return handle.key

    async def is_running(self, process: ProcessKey) -> bool:
        """Whether this very process has not ended; True if that could not be read in time."""
        try:
            (await self.hold_this(process)).close()
        except ProcessLookupError:
            return False
        except TimeoutError:
            return True
        return True

    async def stats(self, pids: Sequence[int], uid: int) -> list[bytes | None]:
        """Return the line of ``stat`` of each process: b"" if there is none, None if it could not be read in time."""
        return await self._read([f"{pid}/stat" for pid in pids], uid)

    async def pid_namespaces(self, processes: Collection[tuple[ProcessKey, int]]) -> dict[ProcessKey, int]:
        """Return the inodes of processes' pid namespaces, without those that could not be read (in time).

        ``processes``: each with its user.
        """
        of_user: dict[int, list[ProcessKey]] = {}
        for process, uid in processes:
            of_user.setdefault(uid, []).append(process)
        read = [self._read([f"{each.pid}/ns/pid" for each in keys], uid) for uid, keys in of_user.items()]
        found = zip(of_user.values(), await asyncio.gather(*read), strict=True)
        return {key: int(inode) for keys, inodes in found for key, inode in zip(keys, inodes, strict=True) if inode}

    # How it is read.

    async def _read(self, names: Sequence[str], uid: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        while len(found) < len(names):
            asked = names[len(found) : len(found) + _BATCH]
            answers = await self._ask(asked, uid)
            if answers is None:
                # Not one was begun: there was no turn for this user.
                return found + [None] * (len(names) - len(found))
            found += answers
            if len(answers) < len(asked):
                found.append(None)
        return found

    async def _ask(self, names: Sequence[str], uid: int) -> list[bytes | None] | None:
        """Return the answers that came in time, in order; None if the user had no turn in time."""
        loop = asyncio.get_running_loop()
        request = _Lookup(uid, names, loop.create_future())
        if self._idle and not len(self._waiting) and self._share.has_room(uid):
            self._begin(self._idle.pop(), request)
            return await request.answers
        if self._closed or self._waiting.of(uid) >= _MAX_WAITING:
            return None
        ticket = self._waiting.add(uid, request)
        self._dispatch()
        if not request.began:
            request.patience = loop.call_later(PATIENCE, request.over)
        try:
            answers = await request.answers
        finally:
            self._waiting.withdraw(ticket)
        return answers if request.began else None

    def _dispatch(self) -> None:
        """Give idle children to those that wait; users take turns."""
        while self._idle and (request := self._next()) is not None:
            self._begin(self._idle.pop(), request)
        if self._check is None and not self._idle and self._may_begin():
            self._check = asyncio.get_running_loop().call_later(
                _HELD_UP if self._busy or self._starting else 0, self._none_idle
            )

    def _next(self) -> _Lookup | None:
        while (following := self._waiting.take(self._share.has_room)) is not None:
            if not following[1].answers.done():
                return following[1]
        return None

    def _may_begin(self) -> list[int]:
        return [uid for uid in self._waiting.users() if self._share.has_room(uid)]

    def _begin(self, child: ReadingChild, request: _Lookup) -> None:
        loop = asyncio.get_running_loop()
        if request.patience is not None:
            request.patience.cancel()
        request.began = loop.time()
        if self._late is None:
            self._late = loop.call_later(self._deadline, self._look_at_late)
        self._busy[child] = request
        request.place = self._share.exceed(request.uid)
        try:
            child.socket.send(" ".join(request.names).encode())
        except OSError:
            # It has ended: the out-of-memory killer, for example.
            self._abandon(child)

    def _join(self, child: ReadingChild) -> None:
        self._idle.append(child)
        asyncio.get_running_loop().add_reader(child.socket.fileno(), self._answered, child)

    def _answered(self, child: ReadingChild) -> None:
        request = self._busy.get(child)
        if request is None:
            # It was to say nothing: it has ended.
            self._idle.remove(child)
            self._end(child)
            return
        try:
            while len(request.found) < len(request.names):
                answer = child.socket.recv(_PACKET)
                if not answer:
                    raise EOFError
                request.found.append(answer[1:] if answer[:1] == b"+" else b"")
        except BlockingIOError:
            return
        except (OSError, EOFError):
            self._abandon(child)
            return
        self._release(child)
        if len(self._idle) < _STANDING:
            self._idle.append(child)
        else:
            self._end(child)
        request.over()
        self._dispatch()

    def _release(self, child: ReadingChild) -> None:
        place = self._busy.pop(child).place
        assert place is not None
        place.give_back()

    def _abandon(self, child: ReadingChild) -> None:
        """Kill a child over its read, which ends with what it has found."""
        request = self._busy.get(child)
        if request is None:
            return
        self._release(child)
        self.killed += 1
        self._end(child)
        request.over()
        if len(self._idle) + len(self._busy) + self._starting < _STANDING:
            self._start_one()
        self._dispatch()

    def _end(self, child: ReadingChild) -> None:
        """Kill and reap, on a thread."""

        def ended(gone: "asyncio.Future[bool]") -> None:
            self._lost += not gone.cancelled() and not gone.result()

        loop = asyncio.get_running_loop()
        loop.remove_reader(child.socket.fileno())
        loop.run_in_executor(self._threads, self._unmake, child).add_done_callback(ended)

    def _make(self) -> ReadingChild:
        """Start a child; OSError. From any thread."""
        child = ReadingChild(_CHILD, socket.SOCK_SEQPACKET)
        child.socket.setblocking(False)
        with self._lock:
            if not self._closed:
                self._all.add(child)
                return child
        child.close()
        raise OSError("closed meanwhile")

    def _unmake(self, child: ReadingChild) -> bool:
        """End a child, and return whether it has ended. From any thread."""
        with self._lock:
            if child not in self._all:
                # `close` ends it.
                return True
            self._all.remove(child)
        return child.close()

    def _start_one(self) -> None:
        self._starting += 1
        started = asyncio.get_running_loop().run_in_executor(self._threads, self._make)
        started.add_done_callback(self._started)

    def _started(self, made: "asyncio.Future[ReadingChild]") -> None:
        self._starting -= 1
        if made.cancelled() or made.exception() is not None:
            # Those that wait try again at the next check, until their patience ends.
            return
        if self._closed:
            return
        self._join(made.result())
        self._dispatch()

    def _look_at_late(self) -> None:
        """End the reads that have exceeded the deadline."""
        loop = asyncio.get_running_loop()
        self._late = None
        for child in [each for each, read in self._busy.items() if loop.time() - read.began >= self._deadline]:
            self._abandon(child)
        if self._busy and self._late is None:
            due = min(read.began for read in self._busy.values()) + self._deadline
            self._late = loop.call_at(due, self._look_at_late)

    def _none_idle(self) -> None:
        """Look after those that wait for longer than reads take."""
        self._check = None
        waiting = self._may_begin()
        if self._closed or self._idle or not waiting:
            return
        now = asyncio.get_running_loop().time()
        held_up = [child for child, request in self._busy.items() if now - request.began >= _HELD_UP]
        if len(held_up) == len(self._busy) and not self._starting:
            if len(self._busy) + self._lost < _CHILDREN:
                self._start_one()
            else:
                self._give_way(now, min(self._share.held(uid) for uid in waiting))
        if self._check is None:
            self._check = asyncio.get_running_loop().call_later(_HELD_UP, self._none_idle)

    def _give_way(self, now: float, fewest: int) -> None:
        """End the oldest read of the user that has most, if another one waits that has less."""
        old = [child for child, request in self._busy.items() if now - request.began >= _GIVES_WAY]
        if old:
            child = max(old, key=lambda each: (self._share.held(self._busy[each].uid), -self._busy[each].began))
            if self._share.held(self._busy[child].uid) > fewest:
                self._abandon(child)
