"""An image in GPU memory, mapped by each program that uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_addresses import ImageAddresses, ImageBytes
from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.pool.pinned_arena import PinnedArena, PinnedPieces
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.closing import Closing
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.vault.client.mapped import layout
from mpsguard.vault.client.mapped.backend import CopyingBackend, Held

FIRST: Final = 512 << 20
"""Bytes of the first allocation of a large image: the others are made, and mapped, while the bus fills it."""


class GpuTiers(NamedTuple):
    """By which way a program's images come to its GPU; stays owned by the program, and open while an image is held."""

    pool: PoolConnection
    store: ImageStore
    arena: PinnedArena
    """Of this pool, pinned for ``backend``."""
    backend: CopyingBackend
    """Of the GPU that the pool's tier is meant for."""


class DeviceImage(Closing, ImageBytes):
    """Owns a mapping of the memory."""

    def __init__(
        self,
        backend: CopyingBackend,
        manifest: Manifest,
        *,
        fds: tuple[int, ...] | None = None,
        addresses: ImageAddresses | None = None,
    ) -> None:
        """Map an image.

        Args:
            backend: of the memory.
            manifest: the image's.
            fds: of memory that is there already, mapped read-only; they stay owned by the caller. None: new memory,
                writable, with undefined content; the first allocation of it alone until `complete`.
            addresses: where to; they stay owned by the caller, for at least as long as this object. None: anywhere.

        Raises:
            PoolError: the memory is not the pool's form of an image, or the addresses are not for this one.
            Exception: the backend's error.
        """
        super().__init__(backend, manifest)
        # One descriptor: of a program that makes one allocation of an image of any size, as earlier versions did.
        sizes = [self.size] if fds is not None and len(fds) == 1 else _allocations(self.size)
        if fds is not None and len(fds) != len(sizes):
            raise PoolError(f"{len(fds)} descriptors for an image in GPU memory, and not {len(sizes)}")
        self._handles: list[int] = []
        self._missing: list[tuple[int, int]] = []
        """Address and size of each allocation that is still to be made."""
        with backend.entered(), ExitStack() as undo:
            if addresses is None:
                room = layout.room(self.size)
                self.va = backend.reserve(0, room)
                undo.callback(backend.unreserve, self.va, room)
            else:
                self.va = addresses.take(self.size)
                undo.callback(addresses.give_back)
            if fds is None:
                self._missing += layout.pieces(self.va, sizes)
                self._make_next(undo)
            else:
                held = Held()
                undo.callback(held.give_back, backend, self.va)
                backend.map_all(self.va, zip(fds, sizes, strict=True), held)
                backend.allow(self.va, self.size, writable=False)
            self._undo = undo.pop_all()

    def _make_next(self, undo: ExitStack) -> None:
        va, size = self._missing[0]
        handle = self.backend.make(size)
        self._handles.append(handle)
        undo.callback(self.backend.drop, handle)
        self.backend.map(va, size, handle)
        undo.callback(self.backend.unmap, va, size)
        self.backend.allow(va, size, writable=True)
        del self._missing[0]

    @property
    def ready(self) -> int:
        """Bytes, from the first one on, that have memory."""
        return self._missing[0][0] - self.va if self._missing else self.size

    def complete(self, fill: Sequence[PinnedPieces] = ()) -> None:
        """Make the allocations that are still to be made; raise the backend's errors.

        Args:
            fill: what the memory is filled with, as by `begin_fill`, as soon as there is some.
        """
        with self.backend.entered():
            filled = 0
            while True:
                self.begin_fill(_among(fill, filled, self.ready - filled))
                if not self._missing:
                    return
                filled = self.ready
                self._make_next(self._undo)

    def on_close(self, then: Callable[[], object]) -> None:
        """Have something done after the memory was unmapped."""
        with ExitStack() as after:
            after.callback(then)
            after.push(self._undo.pop_all())
            self._undo = after.pop_all()

    @property
    def made(self) -> bool:
        """Whether this process allocated the memory; otherwise it has mapped what was there."""
        return bool(self._handles)

    def begin_fill(self, sources: Iterable[PinnedPieces]) -> None:
        """Begin to copy pieces that this process has in host memory; `CopyingBackend.settle` waits for it."""
        with self.backend.entered():
            for source in sources:
                at = source.first * PIECE_SIZE
                self.backend.begin_copy(self.va + at, source.address, source.pieces * PIECE_SIZE)

    def export(self) -> tuple[int, ...]:
        """Return descriptors of the memory, owned by the caller; it is read-only from now on for this process too."""
        assert not self._missing
        fds: list[int] = []
        try:
            fds += map(self.backend.export, self._handles)
            self.backend.allow(self.va, self.size, writable=False)
        except BaseException:
            close_all(fds)
            raise
        return tuple(fds)

    def close(self) -> None:
        """Unmap it, and end its use; no array made from it may be used any more. Safe to call twice."""
        with self.backend.entered():
            self._undo.close()


def hold_on_gpu(
    tiers: GpuTiers, image: Image, *, addresses: ImageAddresses | None = None, within: float = 60.0
) -> DeviceImage:
    """Map an image of the GPU tier, read-only; it is copied there from the pinned tier if it is not there.

    Args:
        tiers: of the program.
        image: stays owned by the caller.
        addresses: see `DeviceImage`.
        within: seconds for each of the two tiers.

    Raises:
        PoolError: there is no room, the image is damaged, time is over, or the addresses are not for this image.
        Exception: the backend's error. Nothing is held after an exception.
    """
    pool, key = tiers.pool, key_of(image.manifest)
    fds = pool.hold_on_gpu(tiers.store, image, within=within)
    with ExitStack() as undo:
        undo.callback(pool.release, Tier.GPU, key)
        if fds is None:
            found = undo.enter_context(copy_to_gpu(tiers, image, addresses=addresses, within=within))
            exported = found.export()
            try:
                pool.fill(image, exported)
            finally:
                close_all(exported)
        else:
            try:
                found = DeviceImage(tiers.backend, image.manifest, fds=fds, addresses=addresses)
            finally:
                close_all(fds)
        undo.pop_all()
    found.on_close(lambda: pool.release(Tier.GPU, key))
    return found


def copy_to_gpu(
    tiers: GpuTiers, image: Image, *, addresses: ImageAddresses | None = None, within: float = 60.0
) -> DeviceImage:
    """Return a copy of an image in GPU memory that is this process's own, writable; else as `hold_on_gpu`."""
    with ExitStack() as undo:
        with pinned(tiers, image, within=within) as sources:
            made = undo.enter_context(DeviceImage(tiers.backend, image.manifest, addresses=addresses))
            try:
                made.complete(sources)
            finally:
                # Also after an error: until here the bus reads the slots.
                tiers.backend.settle()
            # And until here they were this image's.
            tiers.pool.check_open()
        undo.pop_all()
    return made


def _allocations(size: int) -> list[int]:
    """Return the sizes of the allocations of an image of ``size`` bytes: the same for each process that maps it."""
    return [FIRST, size - FIRST] if size > 2 * FIRST else [size]


def _among(sources: Sequence[PinnedPieces], offset: int, size: int) -> Iterator[PinnedPieces]:
    """Yield those of the pieces that lie in ``size`` bytes of the image from ``offset`` on: bytes of whole pieces."""
    begin, end = offset // PIECE_SIZE, -(-(offset + size) // PIECE_SIZE)
    for source in sources:
        first, stop = max(source.first, begin), min(source.first + source.pieces, end)
        if first < stop:
            yield PinnedPieces(first, stop - first, source.address + (first - source.first) * PIECE_SIZE)


@contextmanager
def pinned(tiers: GpuTiers, image: Image, *, within: float = 60.0) -> Iterator[tuple[PinnedPieces, ...]]:
    """Hold an image in the pinned tier for a block; raise PoolError as `PoolConnection.hold_pinned`."""
    runs = tiers.pool.hold_pinned(tiers.store, image, within=within)
    try:
        yield tuple(tiers.arena.sources(runs))
    finally:
        tiers.pool.release(Tier.PINNED, key_of(image.manifest))
