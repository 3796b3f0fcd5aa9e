"""Marks the requests of a program: how long each took is counted where the guard can read it.

latency = session.latency()
with latency.measured():
    answer(request)
latency.record(seconds)  # or, where the program has its own clock
"""

import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from mpsguard.linux.descriptors import memfd
from mpsguard.vault.client.region import Chunk, Region
from mpsguard.vault.wire.latency_counts import FIRST_COUNT, HEADER, SIZE, TOTAL_WORD, bucket_of, check_layout

_WORD_MASK: Final = (1 << 64) - 1
"""Counts wrap around: whatever stands in the memory, a request is never refused for it."""


def new_chunks() -> tuple[Chunk, ...]:
    """Return new memory for the counts, of fixed size; the caller owns its descriptor."""
    return (Chunk(memfd.holding("mpsguard-latency", HEADER, SIZE), SIZE),)


class Latency:
    """Counts the requests of one session; safe for use by several threads.

    Only the session's writer counts. In a standby every call is without effect until it is promoted, and then goes on
    with the counts of the writer before it; likewise in a writer that was fenced off.
    """

    def __init__(self, open_region: Callable[[], Region | None], may_count: Callable[[], bool]) -> None:
        """Create it; `Session.latency` does.

        Args:
            open_region: returns the region with the counts; None in a standby while there is none.
            may_count: returns whether this process is the session's writer now.
        """
        self._open_region = open_region
        self._may_count = may_count
        self._lock = threading.Lock()
        self._mapping = threading.Lock()
        """Held while the region is opened, which waits for the session; `close` never takes it."""
        self._closed = False
        self._region: Region | None = None
        self._memory: mmap.mmap | None = None
        self._words: memoryview | None = None
        self._map()

    def record(self, seconds: float) -> None:
        """Count a request that took ``seconds``; about one microsecond, without a system call.

        The first request after a promotion may need the guard, if the standby began before there were any counts.

        Raises:
            ValueError: ``seconds`` is negative or no number.
            VaultError: the memory for the counts could not be made, on that first request.
        """
        if not seconds >= 0:
            raise ValueError(f"{seconds!r} seconds are no latency")
        if not self._may_count():
            return
        if self._words is None:
            with self._mapping:
                self._map()
        bucket = FIRST_COUNT + bucket_of(seconds)
        nanoseconds = round(min(seconds, 1e9) * 1e9)
        with self._lock:
            words = self._words
            if words is not None:
                words[bucket] = (words[bucket] + 1) & _WORD_MASK
                words[TOTAL_WORD] = (words[TOTAL_WORD] + nanoseconds) & _WORD_MASK

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count the block as one request, also if it raises."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.record(time.perf_counter() - began)

    def close(self) -> None:
        """Unmap the counts, which stay in the vault; without effect afterwards."""
        with self._lock:
            self._closed = True
            words, self._words = self._words, None
            memory, self._memory = self._memory, None
            region, self._region = self._region, None
        if words is not None:
            words.release()
        if memory is not None:
            memory.close()
        if region is not None:
            region.close()

    def _map(self) -> None:
        if self._words is not None:
            return
        region = self._open_region()
        if region is None:
            return
        try:
            check_layout(region.layout)
            memory = mmap.mmap(region.fds[0], SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:
            region.close()
            raise
        with self._lock:
            if not self._closed:
                self._region, self._memory = region, memory
                self._words = memoryview(memory).cast("Q")
                return
        memory.close()
        region.close()
