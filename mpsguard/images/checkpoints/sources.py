"""The memory of a session's regions as its writer sees it at a cut: what digests them, and what sets pieces aside."""

import itertools
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from blake3 import blake3

from mpsguard.images.checkpoints.piece_table import DIGEST
from mpsguard.images.checkpoints.pieces import PIECE, RegionSpan, runs
from mpsguard.linux.descriptors import memfd

_THREADS: Final = min(len(os.sched_getaffinity(0)), 16)
SLICE: Final = 64
"""Pieces that are digested at once ahead of a cut: some 0.2 ms of a GPU."""
MOST_ASIDE: Final = 512
"""Pieces of one copy to spare memory: 1 GiB within a GPU takes about 0.8 ms on an H100, and holds up all other work."""


class HostPieces:
    """Reads a region's bytes; does not own the descriptors. Safe for use by several threads.

    By pread(2), not by a mapping: another process's memory must not be able to raise SIGBUS here.
    """

    def __init__(self, fds: Sequence[int], sizes: Sequence[int]) -> None:
        self._fds = tuple(fds)
        self._starts = (0, *itertools.accumulate(sizes))

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on; raise OSError if there are fewer."""
        at = 0
        while at < len(buffer):
            chunk = bisect_right(self._starts, offset + at) - 1
            if chunk >= len(self._fds):
                raise OSError(f"the region ends {len(buffer) - at} bytes before what is to be read")
            inside = offset + at - self._starts[chunk]
            most = min(len(buffer) - at, self._starts[chunk + 1] - offset - at)
            count = os.preadv(self._fds[chunk], [buffer[at : at + most]], inside)
            if not count:
                raise OSError(f"chunk {chunk} of the region ends at byte {inside}")
            at += count


class Spare(Protocol):
    """Spare memory."""

    fd: int
    gpu: str | None
    """None: host memory."""


class RegionSource(ABC):
    """A region that the writer can digest."""

    gpu: str | None = None

    @abstractmethod
    def settle(self) -> None:
        """Return when no write that this process began earlier is under way."""

    @abstractmethod
    def digest(self, span: RegionSpan, numbers: range, into: memoryview) -> None:
        """Write the digests of consecutive pieces to their places in ``into``, which has one for each of the span."""

    @abstractmethod
    def new_spare(self, slots: int) -> Spare:
        """Allocate spare memory of the same kind."""

    @abstractmethod
    def set_aside(self, index: int, slots: range, spare: Spare) -> None:
        """Copy the region's pieces from ``index`` on to slots of a spare of the same kind; finished on return."""

    @abstractmethod
    def close(self) -> None:
        """Give back what was acquired for it."""


class HostSpare:
    """Host memory as a spare; `SpareSpace` closes ``fd``."""

    def __init__(self, slots: int) -> None:
        self.gpu: str | None = None
        self.fd = memfd.create("mpsguard-spare", slots * PIECE, fixed=True)


class HostSource(RegionSource):
    """Host memory. Digests take the time that the processor needs to read it: some 3 GB/s for each core."""

    def __init__(self, fds: Sequence[int], sizes: Sequence[int]) -> None:
        """Take ownership of the descriptors."""
        self._fds = tuple(fds)
        self._size = sum(sizes)
        self._pieces = HostPieces(fds, sizes)

    def settle(self) -> None:
        """Nothing: the processor's writes are done when they are made."""

    def digest(self, span: RegionSpan, numbers: range, into: memoryview) -> None:
        """See `RegionSource.digest`."""

        def some(run: range) -> None:
            buffer = memoryview(bytearray(PIECE))
            for number in run:
                offset, size = span.bounds(number)
                self._pieces.read_into(offset, buffer[:size])
                at = (number - span.first) * DIGEST
                into[at : at + DIGEST] = blake3(buffer[:size]).digest()

        # Enough for a thread to be worth its start.
        parts = list(runs(numbers, max(8, -(-len(numbers) // _THREADS))))
        if len(parts) < 2:
            for part in parts:
                some(part)
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(some, parts):
                pass

    def new_spare(self, slots: int) -> Spare:
        """See `RegionSource.new_spare`."""
        return HostSpare(slots)

    def set_aside(self, index: int, slots: range, spare: Spare) -> None:
        """See `RegionSource.set_aside`."""
        buffer = memoryview(bytearray(PIECE))
        for piece, slot in enumerate(slots, index):
            content = buffer[: min(PIECE, self._size - piece * PIECE)]
            self._pieces.read_into(piece * PIECE, content)
            os.pwrite(spare.fd, content, slot * PIECE)

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self._fds:
            os.close(fd)
        self._fds = ()
