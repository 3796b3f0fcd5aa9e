"""Where the content of an arriving image goes."""

import ctypes
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import RegionImage
from mpsguard.images.store.pieces import PIECE_SIZE, piece_size

Piece = tuple[str, int]
"""Region and index."""


class RegionAddresses(NamedTuple):
    """Where a region of an image is, or will be."""

    va: int
    """Address of the first byte."""
    size: int
    """Bytes."""


class RegionMemory(NamedTuple):
    """Memory of a region."""

    memory: Any
    """What the program makes arrays of."""
    va: int
    """Its address."""


class Destination(ABC):
    """Memory that readers bring pieces to."""

    readers: int
    """Threads at most."""
    batch: int
    """Pieces that a thread brings at once, at most."""

    @abstractmethod
    def room(self, region: RegionImage) -> RegionMemory:
        """Return a region's memory; called once for each, before any content is brought."""

    @abstractmethod
    def bring(self, pieces: Sequence[Piece]) -> None:
        """Bring the content of pieces; it is there on return. Called by several threads. Raises any exception."""

    @abstractmethod
    def end(self) -> None:
        """Have calls of `bring` that wait for something else than content end, by an exception."""


class HostDestination(Destination):
    """Memory of this process alone, filled from the store."""

    readers = min(16, 2 * len(os.sched_getaffinity(0)))
    batch = 1

    def __init__(self, image: Image) -> None:
        """``image``: stays owned by the caller."""
        self._image = image
        self._regions = {region.name: region for region in image.manifest.regions}
        self._memory: dict[str, mmap.mmap] = {}

    def room(self, region: RegionImage) -> RegionMemory:
        """See `Destination.room`."""
        memory = self._memory[region.name] = mmap.mmap(-1, region.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return RegionMemory(memory, ctypes.addressof(ctypes.c_char.from_buffer(memory)))

    def bring(self, pieces: Sequence[Piece]) -> None:
        """See `Destination.bring`."""
        for name, index in pieces:
            region = self._regions[name]
            digest = region.pieces[index]
            if digest is not None:
                at = index * PIECE_SIZE
                part = memoryview(self._memory[name])[at : at + piece_size(region.size, index)]
                self._image.read_into(digest, part)

    def end(self) -> None:
        """Nothing: no call waits."""
