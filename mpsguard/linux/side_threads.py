"""Threads beside the event loop for system calls that may take long, as a driver's do while a GPU recovers."""

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Final

Job = Callable[[], None]


def report_defect() -> None:
    """Pass the exception that is being handled to `threading.excepthook`, on a thread that survives it."""
    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


class SideThreads:
    """Owns at most ``most`` threads. Every job is done, in the order of coming, unless the process ends before.

    They do not keep the process from ending, as those of a ThreadPoolExecutor do: a call into a driver that hangs
    cannot be broken off.
    """

    def __init__(self, name: str, most: int, *, alone_for: float = 0.0) -> None:
        """Create them; they start as they are needed.

        Args:
            name: of each thread.
            most: how many there are.
            alone_for: seconds that a job waits for those before it to end, before it is done beside them. Each thread
                that has something to do wants the interpreter's lock, and after each system call the event loop gets
                it back behind all of them: jobs that take a millisecond are better done one by one.
        """
        self._name: Final = name
        self._most: Final = most
        self._alone_for: Final = alone_for
        self._alone = threading.Lock()
        """Held for a job, unless that has waited `alone_for` for it."""
        self._coming = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._idle = 0
        """Threads that wait for a job; one that is woken counts until it runs."""
        self._threads: list[threading.Thread] = []
        self._closed = False

    def run(self, job: Job) -> None:
        """Do ``job`` on one of the threads; from any thread, never waits. What is given after `close` gets its own.

        Raises:
            RuntimeError: there is no thread, and the operating system gives none; the job is not done.
        """
        with self._coming:
            if self._closed:
                self._thread(job).start()
                return
            self._jobs.append(job)
            if len(self._jobs) <= self._idle:
                self._coming.notify()
            elif len(self._threads) < self._most:
                self._add_thread()

    def _add_thread(self) -> None:
        """Start another thread for the job that came last; the lock is held."""
        thread = self._thread(self._work)
        try:
            thread.start()
        except RuntimeError:
            # A limit of processes. Where there are other threads, one of them does the job.
            if not self._threads:
                self._jobs.pop()
                raise
        else:
            self._threads.append(thread)

    def close(self, within: float) -> bool:
        """Wait ``within`` seconds for what was given to be done; False if it is not: it goes on. Safe to call twice."""
        with self._coming:
            self._closed = True
            self._coming.notify_all()
        deadline = time.monotonic() + within
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _thread(self, target: Job) -> threading.Thread:
        return threading.Thread(target=target, name=self._name, daemon=True)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            alone = self._alone_for > 0 and self._alone.acquire(timeout=self._alone_for)
            try:
                job()
            except Exception:  # a fault of ours in one job must not cost the others their thread
                report_defect()
            finally:
                if alone:
                    self._alone.release()

    def _next(self) -> Job | None:
        """Wait for a job; None: there will be none any more."""
        with self._coming:
            while not self._jobs:
                if self._closed:
                    return None
                self._idle += 1
                self._coming.wait()
                self._idle -= 1
            return self._jobs.popleft()


class SharedThreads:
    """`SideThreads` on which each user but root has ``of_a_user`` jobs at a time; its next ones wait for these."""

    def __init__(self, name: str, most: int, of_a_user: int, *, alone_for: float = 0.0) -> None:
        self._threads = SideThreads(name, most, alone_for=alone_for)
        self._of_a_user: Final = of_a_user
        self._lock = threading.Lock()
        self._busy: Counter[int] = Counter()
        self._waiting: dict[int, deque[Job]] = {}

    def run(self, uid: int, job: Job) -> None:
        """Do ``job`` of a user on one of the threads; from any thread, never waits."""
        with self._lock:
            if uid and self._busy[uid] >= self._of_a_user:
                self._waiting.setdefault(uid, deque()).append(job)
                return
            self._busy[uid] += 1
        self._threads.run(partial(self._do, uid, job))

    def close(self, within: float) -> bool:
        """As `SideThreads.close`; what waits for others of its user waits no more."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            for job in (job for jobs in waiting.values() for job in jobs):
                self._threads.run(job)
        return self._threads.close(within)

    def _do(self, uid: int, job: Job) -> None:
        try:
            job()
        finally:
            with self._lock:
                waiting = self._waiting.get(uid)
                following = waiting.popleft() if waiting else None
                if not waiting:
                    self._waiting.pop(uid, None)
                if following is None:
                    self._busy[uid] -= 1
            if following is not None:
                self._threads.run(partial(self._do, uid, following))
