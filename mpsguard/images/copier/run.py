"""One checkpoint: pieces are drained into buffers, and from there stored, by several threads each.

The threads that drain free the session's memory at the speed of the bus; those that store take the time that the disk
needs. A piece counts only if its digest, taken from the copier's own buffer while it is stored, is the one at the cut.
"""

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Final

from blake3 import blake3

from mpsguard.images.checkpoints.piece_table import DIGEST, PieceTable
from mpsguard.images.checkpoints.pieces import PIECE, RegionSpan, span_of
from mpsguard.images.copier.schedule import Claim, Schedule
from mpsguard.images.copier.sources import CopySource
from mpsguard.images.store.writer import ImageWriter

PIECES_AT_ONCE: Final = 16
"""Pieces in a buffer: 32 MiB take 0.6 ms on the bus."""
_TICK: Final = 0.1
"""Seconds after which a thread that has nothing to do looks again, also for the end."""
DRAINERS: Final = 3
_MOST_STORERS: Final = 24
STORE_MEANWHILE: Final = 4
"""Threads that store while there are free buffers to drain to."""
_PIECES_FOR_STORER: Final = 32
"""Pieces for which one more thread is worth its start: it takes some 3 ms for each."""
_NICENESS: Final = 5
"""Of the threads that store: a third of another thread's share where processors are short."""


class RunStoppedError(Exception):
    """The run was stopped from outside."""


class ForeignSlotError(Exception):
    """The table of pieces names a slot that the spare memory has not."""


@dataclass
class _HeldBuffer:
    """Pieces in a buffer, not all of which are stored yet."""

    buffer: memoryview
    left: int


@dataclass(frozen=True)
class RunMemory:
    """What a run reads from, and where to."""

    regions: Sequence[tuple[RegionSpan, CopySource]]
    spare: CopySource | None
    spare_slots: int
    buffers: Sequence[memoryview]


class CheckpointRun:
    """Copies the pieces of one checkpoint into an image's draft. Used once."""

    def __init__(
        self, table: PieceTable, memory: RunMemory, writer: ImageWriter, on_copied: Callable[[], None]
    ) -> None:
        """Prepare it; `work` does it.

        Args:
            table: shared with the writer; stays owned by the caller.
            memory: stays owned by the caller.
            writer: the image's draft.
            on_copied: called after pieces were copied.
        """
        self.digests = table.all_digests()
        hexadecimal = bytes(table.digests).hex()
        self._names = [hexadecimal[at : at + 2 * DIGEST] for at in range(0, len(hexadecimal), 2 * DIGEST)]
        """The digests as the store has them."""
        self._spans = [span for span, _ in memory.regions]
        self._sources = {span.name: source for span, source in memory.regions}
        self.schedule = Schedule(self.digests, [span.first for span in self._spans])
        self._table = table
        self._memory = memory
        self._writer = writer
        self._on_copied = on_copied
        self._lock = threading.Condition()
        # Not SimpleQueue: where several threads wait with a timeout, its `get` can wait for ever (CPython 3.11: a
        # thread that wakes after its deadline and finds the queue empty goes on with a negative timeout).
        self._free: Queue[memoryview] = Queue()
        self._filled: Queue[tuple[int, memoryview, _HeldBuffer] | None] = Queue()
        """None wakes a thread that looks whether the run is over."""
        self._stopped = threading.Event()
        self._all_store = threading.Event()
        """Whether all threads store, and not a few of them: see `_start_storers`."""
        self._error: BaseException | None = None
        sizes = {self.size(number) for span in self._spans for number in (span.first, span.end - 1)}
        self._zeros = {size: _zeros(size) for size in sizes}
        self.drained_at: float | None = None
        """When no piece of the session's memory was needed any more; CLOCK_MONOTONIC."""

    def size(self, number: int) -> int:
        """Return the bytes of a piece."""
        return span_of(self._spans, number).bounds(number)[1]

    def stored_digests(self, span: RegionSpan) -> tuple[str | None, ...]:
        """Return the digests of a region's pieces as an image's manifest has them: None where all is zero."""
        *most, last = self._names[span.first : span.end]
        whole, short = self._zeros[self.size(span.first)].hex(), self._zeros[self.size(span.end - 1)].hex()
        return *(None if each == whole else each for each in most), None if last == short else last

    def stop(self) -> None:
        """Have `work` end soon, by RunStoppedError."""
        self._stopped.set()

    def work(self) -> None:
        """Return when every piece is in the store, or one is torn (`Schedule.torn`).

        Raises:
            RunStoppedError: it was stopped.
            Exception: of the memory, or of the store.
        """
        for buffer in self._memory.buffers:
            self._free.put(buffer)
        self._reuse_held()
        # Of a session that has hardly changed, a few pieces are left: starting all threads takes longer than they do.
        left = max(1, len(self.digests) - self.schedule.reused)
        drainers = min(DRAINERS, -(-left // PIECES_AT_ONCE))
        storers = storers_for(len(os.sched_getaffinity(0)), left)
        with self._joining() as start:
            for thread in range(drainers):
                start(functools.partial(self._drain, thread))
            start(functools.partial(self._start_storers, storers))
        if self._error is not None:
            raise self._error
        if not self.schedule.is_over:
            raise RunStoppedError

    @contextmanager
    def _joining(self) -> Iterator[Callable[[Callable[[], None]], None]]:
        """Yield what starts a thread, and wait for the ends of all; the run is stopped if one cannot be started."""
        threads: list[threading.Thread] = []

        def start(what: Callable[[], None]) -> None:
            thread = threading.Thread(target=self._guarded, args=(what,), daemon=True)
            thread.start()
            threads.append(thread)

        try:
            yield start
        except BaseException:
            self._stopped.set()
            raise
        finally:
            for thread in threads:
                thread.join()

    def _guarded(self, what: Callable[[], None]) -> None:
        try:
            what()
        except BaseException as error:
            with self._lock:
                if self._error is None:
                    self._error = error
            self._stopped.set()
        # A thread ends when the run is over: the others hear of it one by the other, and not at their next look.
        self._filled.put(None)
        self._all_store.set()
        with self._lock:
            self._lock.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._stopped.is_set() or self.schedule.is_over

    def _reuse_held(self) -> None:
        """Have done at once with what the image before has: of a large session almost all of it."""
        zeros, holds = frozenset(each.hex() for each in self._zeros.values()), self._writer.holds
        found = [number for number, each in enumerate(self._names) if each in zeros or holds(each)]
        self.schedule.reuse(found)
        self._table.set_copied(found)
        if found:
            self._table.set_stored(len(found))
            self._on_copied()

    # --- draining

    def _drain(self, thread: int) -> None:
        while not self._is_over:
            with self._lock:
                found, claim = self.schedule.claim(self._table.wanted(), self._slot, PIECES_AT_ONCE, self._has)
                if claim is None and not found and not self._is_over:
                    # What the other thread copies may come back, if it was set aside meanwhile.
                    self._note_drained()
                    self._lock.wait(_TICK)
            if found:
                self._table.set_copied(found)
                self._on_copied()
            if claim is not None:
                self._copy(claim, thread)
        with self._lock:
            self._note_drained()

    def _copy(self, claim: Claim, thread: int) -> None:
        buffer = self._buffer()
        if buffer is None:
            return
        span = span_of(self._spans, claim.pieces.start)
        offset, _ = span.bounds(claim.pieces.start)
        last, size = span.bounds(claim.pieces[-1])
        source = self._sources[span.name]
        if claim.slot is not None:
            if self._memory.spare is None or claim.slot + len(claim.pieces) > self._memory.spare_slots:
                raise ForeignSlotError(f"slot {claim.slot} of {self._memory.spare_slots}")
            source, at = self._memory.spare, claim.slot * PIECE
        else:
            at = offset
        with source.entered():
            source.read(at, buffer[: last + size - offset], thread)
        with self._lock:
            kept = self.schedule.held(claim, self._slot)
            self._lock.notify_all()
        self._table.set_copied(kept)
        self._on_copied()
        if not kept:
            self._free.put(buffer)
            return
        held = _HeldBuffer(buffer, len(kept))
        for number in kept:
            begin, size = span.bounds(number)
            self._filled.put((number, buffer[begin - offset : begin - offset + size], held))

    def _buffer(self) -> memoryview | None:
        with suppress(Empty):
            return self._free.get_nowait()
        self._all_store.set()
        while not self._is_over:
            with suppress(Empty):
                return self._free.get(timeout=_TICK)
        return None

    def _note_drained(self) -> None:
        if self.drained_at is None and self.schedule.is_drained:
            self.drained_at = time.monotonic()
            self._all_store.set()

    def _slot(self, number: int) -> int | None:
        return self._table.slot(number)

    def _has(self, digest: bytes) -> bool:
        return digest in self._zeros.values() or self._writer.has(digest.hex())

    # --- storing

    def _start_storers(self, count: int) -> None:
        # The session's program, and others, come first. Linux counts niceness by thread (setpriority(2), Bugs), and a
        # new thread has that of the one that starts it: it does not take a processor from the program first.
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICENESS)
        with self._joining() as start:
            for thread in range(count):
                # As long as there are buffers, pieces can wait in them, and the program for what is not copied yet: the
                # threads that drain have the interpreter, and the bus the host's memory, almost to themselves.
                while thread >= STORE_MEANWHILE and not self._is_over and not self._all_store.wait(_TICK):
                    pass
                if self._is_over:
                    break
                start(self._store)

    def _store(self) -> None:
        while not self._is_over:
            try:
                filled = self._filled.get(timeout=_TICK)
            except Empty:
                continue
            if filled is None:
                continue
            number, content, held = filled
            digest = self._writer.put(content)
            found = self._zeros[len(content)] if digest is None else bytes.fromhex(digest)
            with self._lock:
                self.schedule.stored(number, found)
                self._table.set_stored(self.schedule.copied + self.schedule.reused)
                held.left -= 1
                is_free = held.left == 0
                if self.schedule.is_over:
                    self._lock.notify_all()
            if is_free:
                self._free.put(held.buffer)


def storers_for(processors: int, pieces: int) -> int:
    """Return how many threads store, on half of the processors at most.

    Another client of the lane had 0.97 of its rate then, with three quarters 0.93; 20 GB took 2.4 s, and 2.6
    (`docs/guides/checkpoints.md`, "What was measured").
    """
    useful = max(min(STORE_MEANWHILE, pieces), -(-pieces // _PIECES_FOR_STORER))
    return min(_MOST_STORERS, max(2, processors // 2), useful)


@functools.cache
def _zeros(size: int) -> bytes:
    """Return the digest of so many zeros: of whole pieces, and of a region's last one."""
    return blake3(bytes(size)).digest()
