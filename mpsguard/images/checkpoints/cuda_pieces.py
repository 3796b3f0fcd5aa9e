"""Digests and copies of pieces by the GPU, in the writer's own context."""

import ctypes
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from mpsguard.images.checkpoints.piece_table import DIGEST
from mpsguard.images.checkpoints.pieces import PIECE, RegionSpan
from mpsguard.images.checkpoints.sources import SLICE, RegionSource, Spare
from mpsguard.vault.client.cuda.driver import CudaBackend

_THREADS: Final = 256
_DEVICE_MAP: Final = 2
"""CU_MEMHOSTALLOC_DEVICEMAP."""
_TREES: Final = 8
"""Of each piece: the first kernel has a block for each, and the second combines them (piece_digest.cu)."""


class CudaPieces:
    """The kernels and their memory on one GPU."""

    def __init__(self, backend: CudaBackend) -> None:
        """Load the kernels; raise CudaError."""
        self.backend = backend
        code = Path(__file__).with_name("piece_digest.ptx").read_bytes() + b"\0"
        self._module = backend.call("cuModuleLoadData", code)
        self._stream = backend.call("cuStreamCreate", 1)
        address, count = ctypes.c_uint64, ctypes.c_uint32
        self._tree_values = self._kernel(b"mpsguard_tree_values", address, address, address)
        self._piece_digests = self._kernel(b"mpsguard_piece_digests", address, address, count)
        self._room = 0
        self._numbers = self._counted = self._trees = self._digests = 0
        self._found = memoryview(b"")
        """The digests, as the processor sees them."""

    def prepare(self, va: int, count: int) -> None:
        """Have what digesting so many pieces takes: memory, and the driver's own preparation of a first launch.

        That launch has as many blocks as one ahead of a cut.
        """
        self._make_room(count)
        if first := min(count, SLICE):
            self.digest(va, range(first), memoryview(bytearray(first * DIGEST)))

    def settle(self) -> None:
        """Wait for all work of the context."""
        self.backend.call("cuCtxSynchronize")

    def digest(self, va: int, indices: Sequence[int], into: memoryview) -> None:
        """Write the digests of the pieces with these indices, from ``va`` on, to ``into``, one after the other."""
        count = len(indices)
        # Once for all calls: the program stands still meanwhile.
        with self.backend.entered():
            self._make_room(count)
            call = self.backend.call
            if isinstance(indices, range) and indices.step == 1:
                # What a writer digests at a cut: these numbers are there.
                va, numbers = va + indices.start * PIECE, self._counted
            else:
                numbers = self._numbers
                words = (ctypes.c_uint32 * count)(*indices)
                call("cuMemcpyHtoDAsync", numbers, ctypes.addressof(words), 4 * count, self._stream)
            self._tree_values.launch(count * _TREES, va, numbers, self._trees)
            self._piece_digests.launch(-(-count * _TREES // _THREADS), self._trees, self._digests, count)
            call("cuStreamSynchronize", self._stream)
            into[:] = self._found[: count * DIGEST]

    def copy(self, to: int, va: int, size: int) -> None:
        """Copy within the GPU; finished on return."""
        self.backend.call("cuMemcpyDtoDAsync", to, va, size, self._stream)
        self.backend.call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Give it back; a program that takes checkpoints keeps it until it ends, like its context."""
        self._free_room()
        self.backend.call("cuStreamDestroy", self._stream)
        self.backend.call("cuModuleUnload", self._module)

    def _kernel(self, name: bytes, *types: type[ctypes.c_uint64 | ctypes.c_uint32]) -> "_Kernel":
        return _Kernel(self.backend, self.backend.call("cuModuleGetFunction", self._module, name), self._stream, types)

    def _free_room(self) -> None:
        for old in (self._numbers, self._counted, self._trees):
            if old:
                self.backend.call("cuMemFree", old)
        self._found = memoryview(b"")
        if self._digests:
            self.backend.call("cuMemFreeHost", self._digests)
        self._numbers = self._counted = self._trees = self._digests = self._room = 0

    def _make_room(self, count: int) -> None:
        if count <= self._room:
            return
        self._free_room()
        call = self.backend.call
        self._numbers = int(call("cuMemAlloc", 4 * count))
        self._counted = int(call("cuMemAlloc", 4 * count))
        self._trees = int(call("cuMemAlloc", _TREES * DIGEST * count))
        # Pinned host memory, to which the kernel writes: a copy would be one more thing to wait for. With a unified
        # address space, which each GPU with 64-bit addresses has, it has one address on both sides (cuMemHostAlloc).
        self._digests = int(call("cuMemHostAlloc", DIGEST * count, _DEVICE_MAP))
        self._found = memoryview((ctypes.c_char * (DIGEST * count)).from_address(self._digests)).cast("B")
        words = (ctypes.c_uint32 * count)(*range(count))
        call("cuMemcpyHtoD", self._counted, ctypes.addressof(words), 4 * count)
        self._room = count


class _Kernel:
    """A kernel with memory for its arguments, from which the driver copies them at each launch."""

    def __init__(
        self,
        backend: CudaBackend,
        function: object,
        stream: object,
        types: Sequence[type[ctypes.c_uint64 | ctypes.c_uint32]],
    ) -> None:
        self._backend = backend
        self._function = function
        self._stream = stream
        self._values = [each() for each in types]
        self._pointers = (ctypes.c_void_p * len(types))(*(ctypes.addressof(each) for each in self._values))

    def launch(self, blocks: int, *arguments: int) -> None:
        """Launch it with blocks of `_THREADS` threads."""
        for value, argument in zip(self._values, arguments, strict=True):
            value.value = argument
        place, call = ctypes.addressof(self._pointers), self._backend.call
        call("cuLaunchKernel", self._function, blocks, 1, 1, _THREADS, 1, 1, 0, self._stream, place, 0)


class CudaSource(RegionSource):
    """A region of GPU memory that this process has mapped."""

    def __init__(self, pieces: CudaPieces, va: int, size: int) -> None:
        """Use a region, ahead of the first cut; raise CudaError, or ValueError if it is not made of whole pieces."""
        if size % PIECE:
            raise ValueError(f"a region of {size} bytes on a GPU: not a multiple of {PIECE}")
        self.gpu = pieces.backend.gpu
        self._pieces = pieces
        self._va = va
        pieces.prepare(va, size // PIECE)

    def settle(self) -> None:
        """See `RegionSource.settle`."""
        self._pieces.settle()

    def digest(self, span: RegionSpan, numbers: range, into: memoryview) -> None:
        """See `RegionSource.digest`."""
        indices = range(numbers.start - span.first, numbers.stop - span.first)
        self._pieces.digest(self._va, indices, into[indices.start * DIGEST : indices.stop * DIGEST])

    def close(self) -> None:
        """Nothing: the mapping belongs to the program."""

    def new_spare(self, slots: int) -> Spare:
        """See `RegionSource.new_spare`."""
        return CudaSpare(self._pieces.backend, slots)

    def set_aside(self, index: int, slots: range, spare: Spare) -> None:
        """See `RegionSource.set_aside`."""
        assert isinstance(spare, CudaSpare)
        self._pieces.copy(spare.va + slots.start * PIECE, self._va + index * PIECE, len(slots) * PIECE)


class CudaSpare:
    """Spare memory on a GPU."""

    def __init__(self, backend: CudaBackend, slots: int) -> None:
        """Allocate and map it; raise CudaError."""
        size = slots * PIECE
        self.gpu = backend.gpu
        with ExitStack() as undo:
            handle = backend.make(size)
            try:
                self.fd = backend.export(handle)
                undo.callback(os.close, self.fd)
                self.va = backend.reserve(0, size)
                undo.callback(backend.unreserve, self.va, size)
                backend.map(self.va, size, handle)
                undo.callback(backend.unmap, self.va, size)
                backend.allow(self.va, size, writable=True)
            finally:
                backend.drop(handle)
            undo.pop_all()
