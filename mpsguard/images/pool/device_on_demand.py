"""Images that arrive in GPU memory, from the pinned tier, while the program works."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from mpsguard.images.on_demand.arrival import ArrivingImage
from mpsguard.images.on_demand.destination import Destination, Piece, RegionMemory
from mpsguard.images.on_demand.profile import load_profile
from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.device_image import DeviceImage, GpuTiers, pinned
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_addresses import ImageAddresses
from mpsguard.images.pool.pinned_arena import PinnedPieces
from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import RegionImage
from mpsguard.images.store.pieces import PIECE_SIZE

_BATCH: Final = 8
"""Pieces: 16 MiB take a bus some 300 us, and the interpreter a tenth of that."""


class DeviceDestination(Destination):
    """An image's own memory on a GPU, filled from host memory."""

    readers = 2
    batch = _BATCH

    def __init__(self, memory: DeviceImage, sources: Sequence[PinnedPieces], pool: PoolConnection) -> None:
        """Copy to ``memory``.

        Args:
            memory: may be incomplete; stays owned by the caller.
            sources: all pieces of the image.
            pool: holds them; stays owned by the caller.
        """
        self._memory = memory
        self._pool = pool
        self._first = memory.ready // PIECE_SIZE
        """Pieces that have memory from the beginning; the others when it is complete."""
        self._complete = threading.Event()
        self._addresses = [source.address + index * PIECE_SIZE for source in sources for index in range(source.pieces)]

    def room(self, region: RegionImage) -> RegionMemory:
        """See `Destination.room`."""
        return RegionMemory(self._memory, self._memory.va + self._memory.places[region.name].offset)

    def bring(self, pieces: Sequence[Piece]) -> None:
        """See `Destination.bring`."""
        numbers = [self._memory.places[name].offset // PIECE_SIZE + index for name, index in pieces]
        if max(numbers) >= self._first:
            self._complete.wait()
            if self._memory.ready < self._memory.size:
                raise PoolError("there is no memory for the rest of the image")
        joined: list[PinnedPieces] = []
        for number in numbers:
            address, last = self._addresses[number], joined[-1] if joined else None
            if last is not None and last.first + last.pieces == number and _end(last) == address:
                joined[-1] = last._replace(pieces=last.pieces + 1)
            else:
                joined.append(PinnedPieces(number, 1, address))
        self._memory.begin_fill(joined)
        self._memory.backend.settle()
        # Until here the slots were this image's.
        self._pool.check_open()

    def complete(self) -> None:
        """Make the rest of the memory, while readers fill the first part; raise the backend's errors."""
        self._memory.complete()
        self._complete.set()

    def end(self) -> None:
        """See `Destination.end`."""
        self._complete.set()


@contextmanager
def open_on_gpu(
    tiers: GpuTiers, image: Image, *, addresses: ImageAddresses | None = None, within: float = 60.0
) -> Iterator[tuple[DeviceImage, ArrivingImage]]:
    """Map an image in GPU memory of this process alone, and begin to fill it in the order of its profile.

    Args:
        tiers: of the program.
        image: stays owned by the caller.
        addresses: see `DeviceImage`.
        within: seconds until the image is in the pinned tier, where it is held until the block ends.

    Raises:
        PoolError: there is no room, the image is damaged, time is over, or the addresses are not for this image.
        Exception: the backend's error.
    """
    with (
        pinned(tiers, image, within=within) as sources,
        DeviceImage(tiers.backend, image.manifest, addresses=addresses) as memory,
    ):
        destination = DeviceDestination(memory, sources, tiers.pool)
        with ArrivingImage(image, load_profile(tiers.store, image), destination) as arriving:
            destination.complete()
            yield memory, arriving


def _end(source: PinnedPieces) -> int:
    return source.address + source.pieces * PIECE_SIZE
