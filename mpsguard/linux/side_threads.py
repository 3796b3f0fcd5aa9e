"""Threads beside the event loop for system calls that may take long, as a driver's do while a GPU recovers."""

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar

from mpsguard.linux.user_queue import Ticket, UserQueue
from mpsguard.linux.user_share import Place, UserShare

U = TypeVar("U", bound=Hashable)
T = TypeVar("T")
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


class NoTurnError(Exception):
    """The jobs before it did not end in time."""


class NoThreadError(Exception):
    """The operating system gives no thread."""


class SharedThreads(Generic[U]):
    """`SideThreads` that users share. A job that has no place waits; users have their turns one after another.

    A place is free again when its job has ended, and no sooner: what waited for the job may have given up before.
    """

    def __init__(
        self, name: str, most: int, of_a_user: int, *, privileged: Collection[U] = (), alone_for: float = 0.0
    ) -> None:
        """Create them.

        Args:
            name: of each thread.
            most: how many there are.
            of_a_user: jobs of one user at a time.
            privileged: users that may have all of them.
            alone_for: see `SideThreads`.
        """
        self._threads = SideThreads(name, most, alone_for=alone_for)
        self._lock = threading.Lock()
        self._share: UserShare[U] = UserShare(most, of_a_user, privileged=privileged)
        self._waiting: UserQueue[U, Job] = UserQueue()

    def waiting(self, user: U) -> int:
        """Return how many jobs of a user wait for their turn."""
        return self._waiting.of(user)

    def run(self, user: U, job: Job) -> Ticket[U] | None:
        """Do ``job`` of a user on one of the threads; from any thread, never waits.

        Returns: what identifies the job while it waits; None if it does not wait.

        Raises:
            RuntimeError: the operating system gives no thread; the job is not done.
        """
        with self._lock:
            place = self._share.take(user)
            if place is None:
                return self._waiting.add(user, job)
        try:
            self._threads.run(partial(self._do, job, place))
        except RuntimeError:
            place.give_back()
            raise
        return None

    async def call(self, user: U, work: Callable[[], T], patience: float) -> T:
        """Return what ``work`` returns, done on one of the threads, or raise its exception.

        If the caller is cancelled, work that has begun goes on, and keeps its place until it ends.

        Args:
            user: the user for which it is done.
            work: what to do.
            patience: seconds to wait for a turn.

        Raises:
            NoTurnError: it had none in that time; the work is not done.
            NoThreadError: the operating system gives no thread; the work is not done.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            tell: Job
            try:
                tell = partial(outcome.set_result, work())
            except Exception as error:  # it is the caller's
                tell = partial(outcome.set_exception, error)
            # A loop that has ended waits for nothing.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: None if outcome.done() else tell())

        def give_up() -> None:
            if self._withdraw(ticket) and not outcome.done():
                outcome.set_exception(NoTurnError(f"no turn within {patience:g} s"))

        try:
            ticket = self.run(user, job)
        except RuntimeError as error:
            raise NoThreadError(str(error)) from None
        timer = loop.call_later(patience, give_up)
        try:
            return await outcome
        finally:
            timer.cancel()
            self._withdraw(ticket)

    def close(self, within: float) -> bool:
        """As `SideThreads.close`; what waits for its turn waits no more."""
        with self._lock:
            for job in self._waiting.clear():
                self._threads.run(job)
        return self._threads.close(within)

    def _withdraw(self, ticket: Ticket[U] | None) -> bool:
        with self._lock:
            return ticket is not None and self._waiting.withdraw(ticket)

    def _do(self, job: Job, place: Place) -> None:
        try:
            job()
        finally:
            self._go_on(place)

    def _go_on(self, place: Place) -> None:
        """Begin what waits for the place that is free now."""
        with self._lock:
            place.give_back()
            while (following := self._waiting.take(self._share.has_room)) is not None:
                user, job = following
                self._threads.run(partial(self._do, job, self._share.exceed(user)))
