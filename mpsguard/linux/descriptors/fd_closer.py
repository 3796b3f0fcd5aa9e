"""Closing descriptors where it may take long: the last one of GPU memory frees it, a stranger's may never return."""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

_THREADS_PER_UID: Final = 2
"""Enough that one close(2) that hangs does not hold up the same user's next; a user cannot tie up more."""
_IDLE: Final = 1.0
"""Seconds for which a thread waits for more: to start one takes ten times as long as to close a descriptor."""


class _User:
    """What waits for one user's threads, and how many there are; all under the lock of `ForeignFdCloser`."""

    def __init__(self, lock: threading.Lock) -> None:
        self.jobs: deque[tuple[tuple[int, ...], Callable[[], None]]] = deque()
        self.threads = 0
        self.idle = 0
        self.more = threading.Condition(lock)


class ForeignFdCloser:
    """Closes strangers' descriptors, each user's on threads of its own, so that one that hangs costs its owner alone.

    The threads end some time after they have nothing to do. As the process ends, the kernel closes what is left without
    lingering; a file of a file system (FUSE) that does not answer its FLUSH keeps the process from ending
    (docs/concepts/security.md). What waits is bounded by the caller, which counts a connection until it is closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[int, _User] = {}
        self._without: set[int] = set()
        """Users for which the operating system gave no thread."""

    def close(self, uid: int, fds: tuple[int, ...], closed: Callable[[], None]) -> None:
        """Close ``fds`` some time soon, then call ``closed`` on that thread. From any thread; never waits.

        Where the operating system gives no thread, that is tried again with the next call.
        """
        with self._lock:
            user = self._users.get(uid)
            if user is None:
                user = self._users[uid] = _User(self._lock)
            user.jobs.append((fds, closed))
            if user.idle >= len(user.jobs):
                user.more.notify()
            elif user.threads < _THREADS_PER_UID:
                self._without.add(uid)
            while self._without and self._starts(next(iter(self._without))):
                pass

    def _starts(self, uid: int) -> bool:
        """Start another thread for a user, and return whether there is one; the lock is held."""
        user = self._users.get(uid)
        if user is not None:
            thread = threading.Thread(target=self._run, args=(uid, user), name="close-foreign", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            user.threads += 1
        self._without.discard(uid)
        return True

    def _run(self, uid: int, user: _User) -> None:
        while (job := self._next(uid, user)) is not None:
            fds, closed = job
            close_all(fds)
            closed()

    def _next(self, uid: int, user: _User) -> tuple[tuple[int, ...], Callable[[], None]] | None:
        with self._lock:
            if not user.jobs:
                user.idle += 1
                user.more.wait_for(lambda: user.jobs, _IDLE)
                user.idle -= 1
            if user.jobs:
                return user.jobs.popleft()
            user.threads -= 1
            if not user.threads:
                del self._users[uid]
            return None


class FdCloser:
    """A thread that closes what it is given, in order. One owner, which ends it with `close`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, ...] | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, fds: Sequence[int]) -> None:
        """Close ``fds``, which are of memory and so are closed in the end, some time soon.

        Where the operating system gives no thread, they are closed here.
        """
        if not fds:
            return
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="disposal", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                close_all(fds)
                return
            self._thread = thread
        self._queue.put(tuple(fds))

    def drain(self, deadline: float) -> bool:
        """Wait until all that was taken so far is closed; False if that took longer than ``deadline`` seconds."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(deadline)

    def close(self, deadline: float = 5.0) -> None:
        """Close what is left and end the thread, or leave it behind after ``deadline`` seconds."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(deadline)
            self._thread = None

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            close_all(item)


def of_strangers(fds: Sequence[int]) -> threading.Thread | None:
    """Close descriptors of any kind, on a thread of their own. Never waits.

    On a file system of its own making a peer can keep that thread from ending, and with it the process.
    Returns: the thread, or None if ``fds`` is empty.
    """
    if not fds:
        return None
    thread = threading.Thread(target=close_all, args=(fds,), name="disposal-foreign", daemon=True)
    thread.start()
    return thread


def close_all(fds: Iterable[int]) -> None:
    """Close each: close(2) gives a descriptor back also when it fails, as a stranger's file system may have it."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
