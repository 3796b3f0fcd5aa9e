"""GPU memory that is filled from an image, by way of pinned memory, and digested on the GPU."""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import Final

from blake3 import blake3

from mpsguard.images.checkpoints.cuda_pieces import CudaPieces
from mpsguard.images.checkpoints.piece_table import DIGEST
from mpsguard.images.checkpoints.pieces import PIECE
from mpsguard.images.checkpoints.targets import Target
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.vault.client.cuda.driver import CudaBackend, CudaError
from mpsguard.vault.client.mapped import AddressTakenError, layout
from mpsguard.vault.client.session_memory import MappedAhead

_BATCH: Final = 2
"""Pieces that are copied by one call. A copy gives up the interpreter's lock twice: with two pieces, that is once for
each, beside three times for reading it. Four would spare another half, but all is pinned before anything is read, which
takes longer the more it is."""
STREAMS: Final = 8
"""A copy of a piece takes 40 us, and reading it more than a millisecond: a stream for each reader is not needed."""
_ROOM: Final = _BATCH * PIECE
"""Bytes of a reader's pinned memory."""
_NON_BLOCKING: Final = 1
"""CU_STREAM_NON_BLOCKING."""
_PORTABLE: Final = 1
"""CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts."""


class CudaFiller:
    """One GPU, with pinned memory for each reader, streams, and the digest kernel; for all regions of an image."""

    def __init__(self, device: int, readers: int) -> None:
        """Pin `_BATCH` pieces for each reader; raise CudaError or NoCudaError."""
        self.backend = backend = CudaBackend(device)
        self._own = threading.local()
        self._free: SimpleQueue[int] = SimpleQueue()
        for number in range(readers):
            self._free.put(number)
        self._lock = threading.Lock()
        self._pieces: CudaPieces | None = None
        self._refused = False
        with ExitStack() as undo:
            self._pinned = int(backend.call("cuMemHostAlloc", readers * _ROOM, _PORTABLE))
            undo.callback(backend.call, "cuMemFreeHost", self._pinned)
            self._streams = []
            for _ in range(STREAMS):
                self._streams.append(int(backend.call("cuStreamCreate", _NON_BLOCKING)))
                undo.callback(backend.call, "cuStreamDestroy", self._streams[-1])
            self._undo = undo.pop_all()

    @contextmanager
    def reading(self) -> Iterator[memoryview]:
        """Give the calling thread pinned memory for `_BATCH` pieces, and make the context current."""
        number = self._free.get()
        try:
            self._own.stream = self._streams[number % STREAMS]
            self._own.address = self._pinned + number * _ROOM
            with self.backend.entered():
                yield memoryview((ctypes.c_char * _ROOM).from_address(self._own.address)).cast("B")
        finally:
            self._free.put(number)

    def copy(self, va: int, size: int) -> None:
        """Copy from the calling thread's pinned memory to the GPU; finished on return."""
        own = self._own
        self.backend.call("cuMemcpyHtoDAsync", va, own.address, size, own.stream)
        self.backend.call("cuStreamSynchronize", own.stream)

    def pieces(self) -> CudaPieces | None:
        """Return the digest kernel, loaded at the first call; None if this GPU cannot run it (before sm_75)."""
        with self._lock, self.backend.entered():
            if self._pieces is None and not self._refused:
                try:
                    self._pieces = CudaPieces(self.backend)
                except CudaError:
                    self._refused = True
            return self._pieces

    def close(self) -> None:
        """Give everything back; no thread uses it any more."""
        with self.backend.entered(), self._undo:
            if self._pieces is not None:
                self._pieces.close()


class CudaTarget(Target):
    """A region's memory on a GPU, mapped while it is filled."""

    batch = _BATCH

    def __init__(self, sizes: Sequence[int], filler: CudaFiller, at: int | None = None) -> None:
        """Allocate and map it.

        Args:
            sizes: bytes of each chunk.
            filler: stays owned by the caller.
            at: the region's address, so that what attaches to it need not map it again; None: anywhere.

        Raises:
            AddressTakenError: this process uses the addresses for something else.
            CudaError: there is no room.
        """
        self._filler = filler
        self._sizes = tuple(sizes)
        self._at = at
        self._backend = backend = filler.backend
        self.gpu = backend.gpu
        self._fds: list[int] = []
        self._size = size = sum(sizes)
        # The kernel knows whole pieces alone, of which all regions that this project makes on a GPU consist.
        self.digests_itself = size % PIECE == 0
        with backend.entered(), ExitStack() as undo:
            undo.callback(self._close_fds)
            room = layout.room(size)
            self._va = backend.reserve(at or 0, room)
            undo.callback(backend.unreserve, self._va, room)
            if at not in (None, self._va):
                raise AddressTakenError(f"a region belongs at {at:#x}, where this process has something else")
            for start, length in layout.pieces(self._va, sizes):
                handle = backend.make(length)
                try:
                    self._fds.append(backend.export(handle))
                    backend.map(start, length, handle)
                finally:
                    backend.drop(handle)
                undo.callback(backend.unmap, start, length)
            backend.allow(self._va, size, writable=True)
            self._undo = undo.pop_all()

    def filling(self) -> AbstractContextManager[memoryview]:
        """See `Target.filling`; the buffer is pinned."""
        return self._filler.reading()

    def write(self, index: int, content: memoryview) -> None:
        """See `Target.write`."""
        self._filler.copy(self._va + index * PIECE, len(content))

    def clear(self, index: int, size: int) -> None:
        """See `Target.clear`; a new allocation's content is undefined."""
        self._backend.call("cuMemsetD8", self._va + index * PIECE, 0, size)

    def prepare(self) -> None:
        """See `Target.prepare`: the driver compiles the kernel where it has not done so before."""
        self._filler.pieces()

    def digests(self, indices: Sequence[int]) -> bytes:
        """See `Target.digests`."""
        pieces = self._filler.pieces()
        if pieces is None:
            read = self._backend.read
            return b"".join(blake3(read(self._va + number * PIECE, PIECE)).digest() for number in indices)
        found = memoryview(bytearray(len(indices) * DIGEST))
        with self._backend.entered():
            pieces.settle()
            pieces.digest(self._va, indices, found)
        return bytes(found)

    def export(self) -> list[int]:
        """See `Target.export`."""
        self._backend.call("cuCtxSynchronize")
        fds, self._fds = self._fds, []
        return fds

    def keep_mapped(self) -> MappedAhead | None:
        """See `Target.keep_mapped`."""
        if self._at is None:
            return None
        undo = ExitStack()
        undo.callback(self._give_back, self._undo.pop_all())
        return MappedAhead(self._at, self._sizes, self.gpu, undo)

    def _give_back(self, mapping: ExitStack) -> None:
        with self._backend.entered(), suppress(CudaError):
            mapping.close()

    def close(self) -> None:
        """See `Target.close`: the vault's descriptors keep what was given to it."""
        with self._backend.entered():
            self._undo.close()

    def _close_fds(self) -> None:
        close_all(self._fds)
        self._fds = []
