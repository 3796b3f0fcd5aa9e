"""The thread that writes the journal to disk, and its bounded queue."""

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from mpsguard.guard.journal import schema
from mpsguard.guard.journal.records import JournalBusyError, JournalError, JournalLimits
from mpsguard.guard.journal.store import Store
from mpsguard.guard.model import Notify
from mpsguard.linux.side_threads import report_defect

T = TypeVar("T")

_BATCH: Final = 512
_BATCH_BYTES: Final = 1 << 20
"""Most records, and about the most bytes, that share a transaction and its fsync."""


class _Write:
    """A queued write."""

    def __init__(self, put: Callable[[Store], int]) -> None:
        self.put = put


class _Query:
    """A queued query, and the future for its result."""

    def __init__(self, query: Callable[[Store], Any], answer: "Future[Any]", *, anew: bool = False) -> None:
        """``anew``: whether the file is opened anew for it."""
        self.query = query
        self.answer = answer
        self.anew = anew


class Writer:
    """Owns the store, the queue and the thread. `put`, `ask` and `close` belong to one thread, the event loop's."""

    def __init__(self, store: Store, path: Path, limits: JournalLimits, on_notice: Notify) -> None:
        self._store: Store | None = store
        self._path = path
        self._limits = limits
        self._on_notice = on_notice
        self._queue: queue.Queue[_Write | _Query | None] = queue.Queue(limits.queue)
        # Each is counted by one thread alone: ``_refused`` by the caller's, ``_failed`` by the journal's.
        self._refused = self._failed = 0
        self._published_drops = 0
        self._failing = False
        self._closed = False
        # A daemon thread: a guard that dies without `close` must not wait for a disk that hangs.
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of records dropped."""
        return self._refused + self._failed

    def put(self, put: Callable[[Store], int], *, spare: int = 0) -> None:
        """Queue ``put`` as a write; never waits. With ``spare`` or fewer places free, it is dropped and counted."""
        try:
            if self._closed or self._queue.maxsize - self._queue.qsize() <= spare:
                raise queue.Full
            self._queue.put_nowait(_Write(put))
        except queue.Full:
            self._refused += 1

    async def ask(self, query: Callable[[Store], T]) -> T:
        """Return the result of ``query``, which runs after all earlier writes.

        Raises:
            JournalBusyError: the queue is full.
            JournalError: the journal is closed, or its file cannot be read.
            Exception: whatever ``query`` raises.
        """
        answer: Future[T] = Future()
        try:
            if self._closed:
                raise JournalError("the journal is closed")
            self._queue.put_nowait(_Query(query, answer))
        except queue.Full:
            raise JournalBusyError("the journal is busy: its disk does not keep up") from None
        return await asyncio.wrap_future(answer)

    def open_again(self, within: float) -> None:
        """See `Journal.open_again`."""
        answer: Future[None] = Future()
        try:
            self._queue.put_nowait(_Query(lambda _: None, answer, anew=True))
        except queue.Full:
            raise JournalBusyError("the journal is busy: its disk does not keep up") from None
        answer.result(within)

    def close(self, within: float | None = None) -> bool:
        """Write what waits, then close the file; blocks. Return False if that took more than ``within`` seconds."""
        if not self._closed:
            self._closed = True
            try:
                self._queue.put(None, timeout=within)
            except queue.Full:
                return False
        self._thread.join(within)
        return not self._thread.is_alive()

    def _work(self) -> None:
        """Run the journal's thread until `close`."""
        ended = False
        while not ended:
            jobs = [self._queue.get()]
            with suppress(queue.Empty):
                while len(jobs) < _BATCH:
                    jobs.append(self._queue.get_nowait())
            ended = None in jobs
            waiting: deque[_Write] = deque()
            for job in jobs:
                if isinstance(job, _Write):
                    waiting.append(job)
                elif job is not None:
                    # All earlier writes are committed first: a query's result contains nothing that may yet be lost.
                    self._write(waiting)
                    self._answer(job)
            self._write(waiting)
            if self.dropped > self._published_drops:
                self._notice("journal_dropped", count=self.dropped - self._published_drops)
                self._published_drops = self.dropped
        if self._store is not None:
            self._store.close()

    def _write(self, jobs: "deque[_Write]") -> None:
        while jobs:
            dequeued = 0
            try:
                store = self._opened()
                with store.transaction():
                    size = 0
                    while jobs and size < _BATCH_BYTES:
                        dequeued += 1
                        size += self._put(store, jobs.popleft())
            except Exception as error:  # it costs this batch; the thread goes on
                # If the file could not be opened, nothing was taken off the queue yet.
                self._failed += dequeued or len(jobs)
                if not dequeued:
                    jobs.clear()
                self._trouble(error)
            else:
                self._failing = False

    def _put(self, store: Store, job: _Write) -> int:
        try:
            return job.put(store)
        except (ValueError, OverflowError, msgspec.MsgspecError, sqlite3.IntegrityError):
            # A record that no database accepts (too big, not a number, ...) must not cost the rest of its transaction.
            self._failed += 1
            return 0

    def _answer(self, query: _Query) -> None:
        if not query.answer.set_running_or_notify_cancel():
            return
        if query.anew and self._store is not None:
            self._store.close()
            self._store = None
        try:
            answer = query.query(self._opened())
        except sqlite3.Error as error:
            self._trouble(error)
            query.answer.set_exception(JournalError(f"journal {self._path}: {error}"))
        except Exception as error:  # it is the caller's; this thread goes on
            query.answer.set_exception(error)
        else:
            query.answer.set_result(answer)

    def _opened(self) -> Store:
        if self._store is None:
            self._store = Store(self._path, self._limits)
            if self._store.aside is not None:
                self._notice("journal_damaged", aside=str(self._store.aside))
        return self._store

    def _trouble(self, error: Exception) -> None:
        """Handle a full or broken disk or a damaged file: publish it once, until a write succeeds again."""
        if not isinstance(error, sqlite3.Error | OSError | JournalError):
            report_defect()
        if not self._failing:
            self._failing = True
            self._notice("journal_failed", detail=str(error))
        if self._store is not None and isinstance(error, sqlite3.Error) and schema.is_damage(error):
            # The next write opens the file again, which checks it and puts it aside if it is damaged.
            self._store.close()
            self._store = None

    def _notice(self, kind: str, **data: Any) -> None:
        with suppress(Exception):  # the listener may be closed already
            self._on_notice(kind, data)
