"""An image in GPU memory: one allocation, mapped by each program that uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from mpsguard.client.mapped import layout
from mpsguard.client.mapped.backend import CopyingBackend, Held
from mpsguard.images.image import Image
from mpsguard.images.manifest import Manifest
from mpsguard.images.pieces import PIECE_SIZE
from mpsguard.images.store import ImageStore
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.pool.connection import PoolConnection
from mpsguard.pool.errors import PoolError
from mpsguard.pool.image_memory import key_of, places, size_of
from mpsguard.pool.pinned_arena import PinnedArena, PinnedPieces
from mpsguard.pool.tiers import Tier


class DeviceImage:
    """Owns a mapping of the memory; its regions lie as `mpsguard.pool.image_memory.places` says.

    It is an object that CuPy, Numba and PyTorch make a one-dimensional array of uint8 from without a copy.
    """

    def __init__(self, backend: CopyingBackend, manifest: Manifest, *, fds: tuple[int, ...] | None = None) -> None:
        """Map an image.

        Args:
            backend: of the memory.
            manifest: the image's.
            fds: of memory that is there already, mapped read-only; they stay owned by the caller. None: new memory,
                writable, with undefined content.

        Raises:
            PoolError: the memory is not the pool's form of an image.
            Exception: the backend's error.
        """
        self.backend = backend
        self.manifest = manifest
        self.places = places(manifest)
        """Where each region is, by name."""
        self.size = layout.rounded(size_of(manifest), backend.granularity)
        if fds is not None and len(fds) != 1:
            raise PoolError(f"{len(fds)} descriptors for an image in GPU memory")
        with backend.entered(), ExitStack() as undo:
            room = layout.room(self.size)
            self.va = backend.reserve(0, room)
            undo.callback(backend.unreserve, self.va, room)
            if fds is None:
                handle = backend.make(self.size)
                self._handle: int | None = handle
                undo.callback(backend.drop, handle)
                backend.map(self.va, self.size, handle)
                undo.callback(backend.unmap, self.va, self.size)
            else:
                self._handle = None
                held = Held()
                undo.callback(held.give_back, backend, self.va)
                backend.map_all(self.va, [(fds[0], self.size)], held)
            backend.allow(self.va, self.size, writable=fds is None)
            self._undo = undo.pop_all()

    def on_close(self, then: Callable[[], object]) -> None:
        """Have something done after the memory was unmapped."""
        with ExitStack() as after:
            after.callback(then)
            after.push(self._undo.pop_all())
            self._undo = after.pop_all()

    @property
    def made(self) -> bool:
        """Whether this process allocated the memory; otherwise it has mapped what was there."""
        return self._handle is not None

    def begin_fill(self, sources: Iterable[PinnedPieces]) -> None:
        """Begin to copy pieces that this process has in host memory; `CopyingBackend.settle` waits for it."""
        with self.backend.entered():
            for source in sources:
                at = source.first * PIECE_SIZE
                self.backend.begin_copy(self.va + at, source.address, source.pieces * PIECE_SIZE)

    def export(self) -> int:
        """Return a descriptor of the memory, owned by the caller; it is read-only from now on for this process too."""
        assert self._handle is not None
        fd = self.backend.export(self._handle)
        try:
            self.backend.allow(self.va, self.size, writable=False)
        except BaseException:
            close_all((fd,))
            raise
        return fd

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

    def close(self) -> None:
        """Unmap it, and end its use; no array made from it may be used any more. Safe to call twice."""
        with self.backend.entered():
            self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hold_on_gpu(
    pool: PoolConnection,
    store: ImageStore,
    image: Image,
    arena: PinnedArena,
    backend: CopyingBackend,
    *,
    within: float = 60.0,
) -> DeviceImage:
    """Map an image of the GPU tier, read-only; it is copied there from the pinned tier if it is not there.

    Args:
        pool: stays owned by the caller, and open until the result is closed.
        store: of the image.
        image: stays owned by the caller.
        arena: of this pool, pinned for ``backend``.
        backend: of the tier's GPU.
        within: seconds for each of the two tiers.

    Raises:
        PoolError: there is no room, the image is damaged, or time is over.
        Exception: the backend's error. Nothing is held after an exception.
    """
    key = key_of(image.manifest)
    fds = pool.hold_on_gpu(store, image, within=within)
    with ExitStack() as undo:
        undo.callback(pool.release, Tier.GPU, key)
        if fds is None:
            found = undo.enter_context(copy_to_gpu(pool, store, image, arena, backend, within=within))
            exported = (found.export(),)
            try:
                pool.fill(image, exported)
            finally:
                close_all(exported)
        else:
            try:
                found = DeviceImage(backend, image.manifest, fds=fds)
            finally:
                close_all(fds)
        undo.pop_all()
    found.on_close(lambda: pool.release(Tier.GPU, key))
    return found


def copy_to_gpu(
    pool: PoolConnection,
    store: ImageStore,
    image: Image,
    arena: PinnedArena,
    backend: CopyingBackend,
    *,
    within: float = 60.0,
) -> DeviceImage:
    """Return a copy of an image in GPU memory that is this process's own, writable; else as `hold_on_gpu`."""
    with pinned(pool, store, image, arena, within=within) as sources, ExitStack() as undo:
        made = undo.enter_context(DeviceImage(backend, image.manifest))
        made.begin_fill(sources)
        backend.settle()
        undo.pop_all()
    return made


@contextmanager
def pinned(
    pool: PoolConnection, store: ImageStore, image: Image, arena: PinnedArena, *, within: float = 60.0
) -> Iterator[tuple[PinnedPieces, ...]]:
    """Hold an image in the pinned tier for a block; raise PoolError as `PoolConnection.hold_pinned`."""
    runs = pool.hold_pinned(store, image, within=within)
    try:
        yield tuple(arena.sources(runs))
    finally:
        pool.release(Tier.PINNED, key_of(image.manifest))
