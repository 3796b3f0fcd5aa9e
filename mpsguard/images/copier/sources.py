"""What the copier reads: regions and spare memory, of the host and of GPUs."""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from mpsguard.images.checkpoints.sources import HostPieces


class CopySource(ABC):
    """Memory that can be read by several threads; owns what it has acquired."""

    def entered(self) -> AbstractContextManager[None]:
        """Return a context that sets up this thread."""
        return nullcontext()

    @abstractmethod
    def read(self, offset: int, buffer: memoryview, stream: int) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on; finished on return.

        ``stream``: number of the calling thread, so that threads do not wait for each other.
        """

    @abstractmethod
    def close(self) -> None:
        """Give it back."""


class HostCopySource(CopySource):
    """Host memory."""

    def __init__(self, fds: Sequence[int], sizes: Sequence[int], owner: ExitStack) -> None:
        """Read descriptors that ``owner`` closes."""
        self._pieces = HostPieces(fds, sizes)
        self._owner = owner

    def read(self, offset: int, buffer: memoryview, stream: int) -> None:
        """See `CopySource.read`."""
        del stream
        self._pieces.read_into(offset, buffer)

    def close(self) -> None:
        """See `CopySource.close`."""
        self._owner.close()


class Buffers:
    """Host memory, cut into buffers of equal size."""

    def __init__(self, memory: memoryview, size: int) -> None:
        self.each = [memory[at : at + size] for at in range(0, len(memory) - size + 1, size)]


def host_buffers(total: int, size: int) -> Buffers:
    """Return buffers in ordinary memory, at least two."""
    memory = mmap.mmap(-1, max(total // size, 2) * size)
    return Buffers(memoryview(memory), size)
