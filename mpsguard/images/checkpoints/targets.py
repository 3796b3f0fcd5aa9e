"""Memory that is filled from an image."""

import itertools
import os
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from mpsguard.images.checkpoints.pieces import PIECE
from mpsguard.images.store.pieces import piece_count
from mpsguard.linux.descriptors import memfd
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.vault.client.session_memory import MappedAhead

_own: Final = threading.local()


class Target(ABC):
    """A new region's memory; owns it until `close`. Pieces may be written by several threads at once."""

    gpu: str | None = None
    """UUID of the GPU that has it; None: host memory."""
    digests_itself: bool = False
    """Whether `digests` tells what was written; otherwise pieces are to be compared with their digests when they are
    read, which costs the processor twice what reading them does."""

    batch: int = 1
    """Pieces that a thread's buffer has room for, and that `write` takes at once."""

    @abstractmethod
    def filling(self) -> AbstractContextManager[memoryview]:
        """Return a buffer of `batch` pieces for the calling thread, as a context for several writes."""

    @abstractmethod
    def write(self, index: int, content: memoryview) -> None:
        """Write consecutive pieces, from one on, from the start of the thread's buffer; finished on return."""

    @abstractmethod
    def clear(self, index: int, size: int) -> None:
        """Fill a piece with zeros."""

    def prepare(self) -> None:  # noqa: B027 - most kinds need nothing
        """Prepare `digests`; may be called beside writes."""

    def digests(self, indices: Sequence[int]) -> bytes:
        """Return the BLAKE3 digests of pieces, one after the other, as the memory has them after all writes."""
        raise NotImplementedError

    @abstractmethod
    def export(self) -> list[int]:
        """Return a descriptor for each chunk, owned by the caller; all pieces are written."""

    def keep_mapped(self) -> MappedAhead | None:
        """Return the mapping, owned by the caller from now on; None: it is not mapped at its region's address."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Give back what this process has of it; safe to call twice."""


class HostTarget(Target):
    """Host memory in memfds; new ones are full of zeros."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Make a memfd for each chunk; raise OSError."""
        self._starts = (0, *itertools.accumulate(sizes))
        self._written = bytearray(-(-self._starts[-1] // PIECE))
        """A byte for each piece that is not as new any more."""
        self._fds: list[int] = []
        try:
            for size in sizes:
                self._fds.append(memfd.create("mpsguard-region", size, fixed=True))
        except BaseException:
            self.close()
            raise

    @contextmanager
    def filling(self) -> Iterator[memoryview]:
        """See `Target.filling`."""
        buffer = getattr(_own, "buffer", None)
        if buffer is None or len(buffer) < self.batch * PIECE:
            buffer = _own.buffer = memoryview(bytearray(self.batch * PIECE))
        yield buffer

    def write(self, index: int, content: memoryview) -> None:
        """See `Target.write`."""
        count = piece_count(len(content))
        self._written[index : index + count] = b"\1" * count
        offset, at = index * PIECE, 0
        while at < len(content):
            chunk = bisect_right(self._starts, offset + at) - 1
            most = min(len(content) - at, self._starts[chunk + 1] - offset - at)
            at += os.pwrite(self._fds[chunk], content[at : at + most], offset + at - self._starts[chunk])

    def clear(self, index: int, size: int) -> None:
        """See `Target.clear`; another image may have filled the memory before."""
        if self._written[index]:
            self.write(index, memoryview(bytes(size)))

    def export(self) -> list[int]:
        """See `Target.export`."""
        fds, self._fds = self._fds, []
        return fds

    def close(self) -> None:
        """See `Target.close`."""
        close_all(self._fds)
        self._fds = []
