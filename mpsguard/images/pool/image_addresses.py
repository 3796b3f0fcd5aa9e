"""Where an image's bytes are in GPU memory, or will be."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from mpsguard.images.on_demand.destination import RegionAddresses
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_memory import places, size_of
from mpsguard.images.store.manifest import Manifest
from mpsguard.linux.closing import Closing
from mpsguard.vault.client.mapped import layout
from mpsguard.vault.client.mapped.backend import CopyingBackend, Held

REPEATED: Final = 32 << 20
"""Bytes of memory behind addresses at which no image is yet: few mappings, and little memory of a worker that waits."""


class ImageBytes:
    """An image's bytes at one place in GPU memory; its regions lie as `mpsguard.images.pool.image_memory.places` says.

    It is an object that CuPy, Numba and PyTorch make a one-dimensional array of uint8 from without a copy.
    """

    va: int
    """Address of the first byte."""

    def __init__(self, backend: CopyingBackend, manifest: Manifest) -> None:
        self.backend = backend
        self.manifest = manifest
        self.places = places(manifest)
        """Where each region is, by name."""
        self.size = layout.rounded(size_of(manifest), backend.granularity)

    @property
    def regions(self) -> dict[str, RegionAddresses]:
        """Addresses of the regions, by name."""
        return {name: RegionAddresses(self.va + place.offset, place.size) for name, place in self.places.items()}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.backend.gpu is None:
            raise AttributeError("__cuda_array_interface__: this is memory of the host")
        return {**self._array(), "stream": None}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.backend.gpu is not None:
            raise AttributeError("__array_interface__: this is memory of a GPU")
        return self._array()

    def _array(self) -> dict[str, Any]:
        # Declared writable, because PyTorch has no read-only tensors; see `View`.
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.va, False), "strides": None, "version": 3}


class ImageAddresses(Closing, ImageBytes):
    """Addresses for an image that are there before its memory is: what depends on addresses can be prepared.

    Until `clear`, or until a `DeviceImage` takes the addresses, a small piece of memory, full of zeros, repeats behind
    them. So kernels run with the right arguments, and a CUDA graph that is captured with tensors here computes with the
    image's content once that has come. Owns the addresses.
    """

    def __init__(self, backend: CopyingBackend, manifest: Manifest, *, repeated: int = REPEATED) -> None:
        """Reserve addresses for an image; ``repeated``: bytes of the piece of memory. Raise the backend's errors."""
        super().__init__(backend, manifest)
        self._taken = False
        with backend.entered(), ExitStack() as undo:
            room = layout.room(self.size)
            self.va = backend.reserve(0, room)
            undo.callback(backend.unreserve, self.va, room)
            self._stand_in = undo.enter_context(ExitStack())
            self._repeat(layout.chunk_sizes(self.size, backend.granularity, repeated))
            self._undo = undo.pop_all()

    def clear(self) -> None:
        """Unmap the memory that repeats, when all is prepared; safe to call twice.

        Hundreds of mappings for a large image: otherwise the start that takes the addresses waits for that. Until an
        image has come, a kernel that uses the addresses faults.
        """
        with self.backend.entered():
            self._stand_in.close()

    def take(self, size: int) -> int:
        """Return the address, at which nothing is mapped any more; raise PoolError."""
        if size != self.size:
            raise PoolError(f"addresses for an image of {self.size} bytes, and not of {size}")
        if self._taken:
            raise PoolError("an image is at these addresses already")
        self.clear()
        self._taken = True
        return self.va

    def give_back(self) -> None:
        """End the use of the addresses, at which nothing is mapped; then another image may take them."""
        self._taken = False

    def close(self) -> None:
        """Release the addresses; no image is there, and no array of them is used any more. Safe to call twice."""
        with self.backend.entered():
            self._undo.close()

    def _repeat(self, sizes: Sequence[int]) -> None:
        """Map one allocation for all chunks of a size."""
        backend, held, made = self.backend, Held(), dict[int, int]()
        self._stand_in.callback(held.give_back, backend, self.va)
        for va, size in layout.pieces(self.va, sizes):
            if size not in made:
                made[size] = backend.make(size)
                held.handles.append(made[size])
            backend.map(va, size, made[size])
            held.mapped += size
        backend.allow(self.va, self.size, writable=True)
        for size, va in {size: va for va, size in layout.pieces(self.va, sizes)}.items():
            backend.write(va, bytes(size))
