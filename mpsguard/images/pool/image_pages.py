"""An image in shared host memory, as a program maps it."""

import mmap
import os

from mpsguard.images.pool.image_memory import places
from mpsguard.images.store.manifest import Manifest
from mpsguard.linux.closing import Closing


class ImagePages(Closing):
    """Owns a descriptor of the memory: the same pages for all processes that hold the image."""

    def __init__(self, fd: int, manifest: Manifest) -> None:
        self._fd = fd
        self.manifest = manifest
        self.places = places(manifest)
        """Where each region is, by name."""

    def map(self, region: str, *, private: bool = False) -> mmap.mmap:
        """Return a region's mapping, owned by the caller; it stays valid after `close`.

        Args:
            region: its name; KeyError, which lists the names, if there is none.
            private: writable, with an own copy of each page that is written; otherwise read-only.

        Raises:
            ValueError: this object is closed.
        """
        if region not in self.places:
            raise KeyError(f"no region {region}; the image has {', '.join(self.places)}")
        if self._fd < 0:
            raise ValueError("the image in shared memory is closed")
        place = self.places[region]
        flags, protection = (
            (mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) if private else (mmap.MAP_SHARED, mmap.PROT_READ)
        )
        return mmap.mmap(self._fd, place.size, flags, protection, offset=place.offset)

    def close(self) -> None:
        """Close the descriptor; safe to call twice. The pages stay while something is mapped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
