"""An image in memory, mapped before its content is there; the program waits for what it needs.

Readers bring one piece after another, in the order of a profile; what a program waits for comes first.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from mpsguard.images.on_demand.destination import Destination, HostDestination, Piece
from mpsguard.images.on_demand.profile import Profile, profile_of, reading_order
from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import RegionImage
from mpsguard.images.store.pieces import PIECE_SIZE, piece_count
from mpsguard.linux.closing import Closing


class ArrivalError(Exception):
    """The content did not come: the image is damaged or was closed, or time is over."""


class ArrivingRegion(NamedTuple):
    """A region with content that arrives: its memory, of this process alone."""

    arrival: "ArrivingImage"
    name: str
    memory: Any
    """In host memory an mmap.mmap."""
    size: int
    va: int
    """Address of the memory."""

    def ready(self, offset: int = 0, size: int | None = None, *, within: float = 60.0) -> None:
        """Return when ``size`` bytes (None: all that follow) from ``offset`` on are there.

        Raises:
            ValueError: they are not within the region.
            ArrivalError: the image is damaged, or they have not come within ``within`` seconds.
        """
        size = self.size - offset if size is None else size
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"region {self.name!r} has {self.size} bytes, not {size} from {offset} on")
        if size:
            indices = range(offset // PIECE_SIZE, piece_count(offset + size))
            self.arrival.wait_for([(self.name, index) for index in indices], within)


class ArrivingImage(Closing):
    """Owns the memory of the regions and the threads that fill it. Returned by `open_on_demand`."""

    def __init__(self, image: Image, profile: Profile | None, destination: Destination) -> None:
        self._image = image
        self._destination = destination
        self._regions: dict[str, RegionImage] = {region.name: region for region in image.manifest.regions}
        counts = {name: len(region.pieces) for name, region in self._regions.items()}
        self._changed = threading.Condition()
        # All below is under the lock of `_changed`.
        self._order = deque(reading_order(counts, profile))
        self._urgent: deque[Piece] = deque()
        self._begun: set[Piece] = set()
        self._arrived: set[Piece] = set()
        self._used: dict[Piece, None] = {}
        self._error: Exception | None = None
        self._closed = False
        self.regions: Mapping[str, ArrivingRegion] = {
            name: self._mapped(region) for name, region in self._regions.items()
        }
        """By name; none after `close`."""
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(destination.readers):
                thread = threading.Thread(target=self._read, name="on-demand", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def wait_for(self, pieces: list[Piece], within: float) -> None:
        """See `ArrivingRegion.ready`."""
        with self._changed:
            self._used.update(dict.fromkeys(pieces))
            self._urgent.extend(piece for piece in pieces if piece not in self._begun)
        self._wait(pieces, within)

    def _wait(self, pieces: list[Piece], within: float) -> None:
        end = time.monotonic() + within
        with self._changed:
            for piece in pieces:
                while piece not in self._arrived:
                    if self._error is not None:
                        raise ArrivalError(str(self._error)) from self._error
                    if self._closed:
                        raise ArrivalError(f"image {self._image.name} was closed")
                    if not self._changed.wait(end - time.monotonic()) and time.monotonic() >= end:
                        raise ArrivalError(f"image {self._image.name}: not there within {within:g} s")

    def ready(self, *, within: float = 600.0) -> None:
        """Return when all of it is there; raise ArrivalError."""
        pieces = [(name, index) for name, region in self._regions.items() for index in range(len(region.pieces))]
        self._wait(pieces, within)

    def profile(self) -> Profile:
        """Return the order in which the program has waited for pieces."""
        with self._changed:
            return profile_of(self._image.manifest, tuple(self._used))

    def close(self) -> None:
        """End the reading; safe to call twice. Memory that something still refers to, such as a tensor, stays."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._destination.end()
        for thread in self._threads:
            thread.join()
        self.regions = {}

    def _mapped(self, region: RegionImage) -> ArrivingRegion:
        memory, va = self._destination.room(region)
        return ArrivingRegion(self, region.name, memory, region.size, va)

    def _next(self) -> list[Piece]:
        """Take the next pieces; none at the end."""
        taken: list[Piece] = []
        with self._changed:
            while len(taken) < self._destination.batch and (self._urgent or self._order):
                if self._closed or self._error is not None:
                    return []
                piece = self._urgent.popleft() if self._urgent else self._order.popleft()
                if piece not in self._begun:
                    self._begun.add(piece)
                    taken.append(piece)
        return taken

    def _read(self) -> None:
        while pieces := self._next():
            error: Exception | None = None
            try:
                self._destination.bring(pieces)
            except Exception as caught:  # every waiter is told of it
                error = caught
            with self._changed:
                if error is None:
                    self._arrived.update(pieces)
                else:
                    self._error = self._error or error
                self._changed.notify_all()


def open_on_demand(image: Image, profile: Profile | None = None) -> ArrivingImage:
    """Map the regions of an image in host memory, and begin to read them.

    Args:
        image: stays owned by the caller, and open until the arriving one is closed.
        profile: the order; None: that of the manifest.

    Raises:
        OSError: there is no memory.
    """
    return ArrivingImage(image, profile, HostDestination(image))
