"""The one thread that touches the journal's disk, and the bounded queue before it."""

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from mpsguard.journal import schema
from mpsguard.journal.records import JournalBusyError, JournalError, Limits
from mpsguard.journal.store import Store

T = TypeVar("T")
Notice = Callable[[str, Mapping[str, Any]], None]

_BATCH: Final = 512
_BATCH_BYTES: Final = 1 << 20
"""Records, and about as many bytes, that share a transaction and its fsync."""


class _Write:
    """A record that waits for the disk."""

    def __init__(self, put: Callable[[Store], int]) -> None:
        self.put = put


class _Question:
    """A look into the journal that somebody waits for."""

    def __init__(self, look: Callable[[Store], Any], answer: "Future[Any]") -> None:
        self.look = look
        self.answer = answer


class Writer:
    """Owns the store, the queue and the thread. `put`, `ask` and `close` belong to one thread, the event loop's."""

    def __init__(self, store: Store, path: Path, limits: Limits, noticed: Notice) -> None:
        self._store: Store | None = store
        self._path = path
        self._limits = limits
        self._noticed = noticed
        self._queue: queue.Queue[_Write | _Question | None] = queue.Queue(limits.queue)
        # Each counted by one thread alone: the callers' and ours.
        self._refused = self._failed = 0
        self._told = 0
        self._failing = False
        self._closed = False
        # A daemon thread: a guard that dies without `close` must not wait for a disk that hangs.
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that were not kept."""
        return self._refused + self._failed

    def put(self, put: Callable[[Store], int], *, spare: int = 0) -> None:
        """Let ``put`` write a record; never waits. With less than ``spare`` places free it is dropped and counted."""
        try:
            if self._closed or self._queue.maxsize - self._queue.qsize() <= spare:
                raise queue.Full
            self._queue.put_nowait(_Write(put))
        except queue.Full:
            self._refused += 1

    async def ask(self, look: Callable[[Store], T]) -> T:
        """Look into the store once all that was put before is kept; JournalBusyError, JournalError, what it raises."""
        answer: Future[T] = Future()
        try:
            if self._closed:
                raise JournalError("the journal is closed")
            self._queue.put_nowait(_Question(look, answer))
        except queue.Full:
            raise JournalBusyError("the journal is busy: its disk does not keep up") from None
        return await asyncio.wrap_future(answer)

    def close(self, within: float | None = None) -> bool:
        """Write what waits, then give the file back; blocks until then. False if ``within`` seconds did not do."""
        if not self._closed:
            self._closed = True
            try:
                self._queue.put(None, timeout=within)
            except queue.Full:
                return False
        self._thread.join(within)
        return not self._thread.is_alive()

    def _work(self) -> None:
        """The journal's thread, until it is told to end."""
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
                    # An answer tells of nothing that may yet be lost.
                    self._write(waiting)
                    self._answer(job)
            self._write(waiting)
            if self.dropped > self._told:
                self._notice("journal_dropped", count=self.dropped - self._told)
                self._told = self.dropped
        if self._store is not None:
            self._store.close()

    def _write(self, jobs: "deque[_Write]") -> None:
        while jobs:
            taken = 0
            try:
                store = self._opened()
                with store.transaction():
                    size = 0
                    while jobs and size < _BATCH_BYTES:
                        taken += 1
                        size += self._put(store, jobs.popleft())
            except Exception as error:  # whatever it is costs this batch; the thread goes on
                # With no file at all nothing was taken yet.
                self._failed += taken or len(jobs)
                if not taken:
                    jobs.clear()
                self._trouble(error)
            else:
                self._failing = False

    def _put(self, store: Store, job: _Write) -> int:
        try:
            return job.put(store)
        except (ValueError, OverflowError, msgspec.MsgspecError, sqlite3.IntegrityError):
            # What no database takes (too big, not a number, ...) costs itself only, not what shares its transaction.
            self._failed += 1
            return 0

    def _answer(self, question: _Question) -> None:
        if not question.answer.set_running_or_notify_cancel():
            return
        try:
            answer = question.look(self._opened())
        except sqlite3.Error as error:
            self._trouble(error)
            question.answer.set_exception(JournalError(f"journal {self._path}: {error}"))
        except Exception as error:  # the asker's to deal with; this thread goes on
            question.answer.set_exception(error)
        else:
            question.answer.set_result(answer)

    def _opened(self) -> Store:
        if self._store is None:
            self._store = Store(self._path, self._limits)
            if self._store.aside is not None:
                self._notice("journal_damaged", aside=str(self._store.aside))
        return self._store

    def _trouble(self, error: Exception) -> None:
        """The disk is full or broken, or the file was damaged under us; once more until it works again is enough."""
        if not self._failing:
            self._failing = True
            self._notice("journal_failed", detail=str(error))
        if self._store is not None and isinstance(error, sqlite3.Error) and schema.is_damage(error):
            # Opened again, it is checked, and put aside if it is as bad as it looks.
            self._store.close()
            self._store = None

    def _notice(self, kind: str, **data: Any) -> None:
        with suppress(Exception):  # whoever listens may be gone already
            self._noticed(kind, data)
