"""GPU memory as the copier reads it: mapped in a context outside of the lane, copied to pinned memory."""

import ctypes
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Final

from mpsguard.images.copier.sources import Buffers, CopySource
from mpsguard.vault.client.cuda import CudaBackend
from mpsguard.vault.client.cuda.driver import device_of
from mpsguard.vault.client.mapped import layout
from mpsguard.vault.client.mapped.backend import Held

STREAMS: Final = 3
"""Copies under way at a time: one alone leaves the bus idle between two of them."""
_PORTABLE: Final = 1
"""CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts."""
_NON_BLOCKING: Final = 1
"""CU_STREAM_NON_BLOCKING."""


class CopierGpu:
    """One GPU with the copier's context on it."""

    def __init__(self, gpu: str) -> None:
        """Use the GPU with that UUID; raise NoCudaError or CudaError."""
        self.backend = CudaBackend(device_of(gpu))
        self.streams = [int(self.backend.call("cuStreamCreate", _NON_BLOCKING)) for _ in range(STREAMS)]

    def map(self, fds: Sequence[int], sizes: Sequence[int], owner: ExitStack) -> "CudaCopySource":
        """Map exported memory, read-only; raise CudaError. ``owner`` is closed after the mapping."""
        backend = self.backend
        size = sum(sizes)
        with backend.entered(), ExitStack() as undo:
            undo.enter_context(owner)
            room = layout.room(size)
            va = backend.reserve(0, room)
            undo.callback(backend.unreserve, va, room)
            held = Held()
            undo.callback(_unmap, backend, va, held)
            backend.map_all(va, zip(fds, sizes, strict=True), held)
            backend.allow(va, size, writable=False)
            return CudaCopySource(self, va, undo.pop_all())


class CudaCopySource(CopySource):
    """A mapped region, or the spare memory."""

    def __init__(self, gpu: CopierGpu, va: int, undo: ExitStack) -> None:
        self._gpu = gpu
        self._va = va
        self._undo = undo

    def entered(self) -> AbstractContextManager[None]:
        """See `CopySource.entered`."""
        return self._gpu.backend.entered()

    def read(self, offset: int, buffer: memoryview, stream: int) -> None:
        """See `CopySource.read`; ``buffer`` is pinned."""
        chosen = self._gpu.streams[stream % STREAMS]
        place = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
        call = self._gpu.backend.call
        call("cuMemcpyDtoHAsync", place, self._va + offset, len(buffer), chosen)
        call("cuStreamSynchronize", chosen)

    def close(self) -> None:
        """See `CopySource.close`."""
        with self._gpu.backend.entered():
            self._undo.close()


def pinned_buffers(gpu: CopierGpu, total: int, size: int) -> Buffers:
    """Return buffers in pinned memory, at least two; it stays until the process ends. Raise CudaError."""
    total = max(total // size, 2) * size
    address = int(gpu.backend.call("cuMemHostAlloc", total, _PORTABLE))
    return Buffers(memoryview((ctypes.c_char * total).from_address(address)).cast("B"), size)


def _unmap(backend: CudaBackend, va: int, held: Held) -> None:
    for handle in _drained(held.handles):
        backend.drop(handle)
    if held.mapped:
        backend.unmap(va, held.mapped)


def _drained(handles: list[int]) -> Iterable[int]:
    while handles:
        yield handles.pop()
