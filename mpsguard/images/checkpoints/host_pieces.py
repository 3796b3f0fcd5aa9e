"""The content of a region of host memory, read through its descriptors."""

import itertools
import os
from bisect import bisect_right
from collections.abc import Sequence


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
