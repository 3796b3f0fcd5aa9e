"""GPU memory that is filled from an image, by way of pinned memory."""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from mpsguard.client.checkpoints.pieces import PIECE
from mpsguard.client.checkpoints.targets import Target
from mpsguard.client.cuda.driver import CudaBackend
from mpsguard.client.mapped import layout
from mpsguard.linux.descriptors.fd_closer import close_all

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING."""


class CudaTarget(Target):
    """A region's memory on a GPU, mapped anywhere while it is filled."""

    def __init__(self, sizes: Sequence[int], device: int) -> None:
        """Allocate and map it; raise CudaError or NoCudaError."""
        self._backend = backend = CudaBackend(device)
        self.gpu = backend.gpu
        self._own = threading.local()
        self._lock = threading.Lock()
        self._fds: list[int] = []
        size = sum(sizes)
        with backend.entered(), ExitStack() as undo:
            undo.callback(self._close_fds)
            room = layout.room(size)
            self._va = backend.reserve(0, room)
            undo.callback(backend.unreserve, self._va, room)
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

    @contextmanager
    def room(self, size: int) -> Iterator[memoryview]:
        """See `Target.room`; the buffer is pinned."""
        buffer = getattr(self._own, "buffer", None)
        if buffer is None:
            call = self._backend.call
            address = int(call("cuMemHostAlloc", PIECE, 1))
            stream = int(call("cuStreamCreate", _NON_BLOCKING))
            with self._lock:
                self._undo.callback(call, "cuMemFreeHost", address)
                self._undo.callback(call, "cuStreamDestroy", stream)
            self._own.address, self._own.stream = address, stream
            buffer = self._own.buffer = memoryview((ctypes.c_char * PIECE).from_address(address)).cast("B")
        yield buffer[:size]

    def write(self, index: int, content: memoryview) -> None:
        """See `Target.write`."""
        call = self._backend.call
        call("cuMemcpyHtoDAsync", self._va + index * PIECE, self._own.address, len(content), self._own.stream)
        call("cuStreamSynchronize", self._own.stream)

    def clear(self, index: int, size: int) -> None:
        """See `Target.clear`; a new allocation's content is undefined."""
        self._backend.call("cuMemsetD8", self._va + index * PIECE, 0, size)

    def export(self) -> list[int]:
        """See `Target.export`."""
        self._backend.call("cuCtxSynchronize")
        fds, self._fds = self._fds, []
        return fds

    def close(self) -> None:
        """See `Target.close`: the vault's descriptors keep what was given to it."""
        with self._backend.entered():
            self._undo.close()

    def _close_fds(self) -> None:
        close_all(self._fds)
        self._fds = []
