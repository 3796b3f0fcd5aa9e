"""The form of an image in memory: its regions one after another, each from a multiple of 2 MiB on."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from mpsguard.images.store import manifest as manifests
from mpsguard.images.store.errors import StoreFailedError, os_errors
from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.pieces import PIECE_SIZE, Digest, digest_of, piece_count, piece_size
from mpsguard.linux.descriptors import memfd

_READERS: Final = min(32, 2 * len(os.sched_getaffinity(0)))
_BATCH: Final = 16
"""Pieces that a thread reads in turn."""

W = TypeVar("W")


class RegionPlace(NamedTuple):
    """Where a region is in the memory of its image, in bytes."""

    offset: int
    size: int


def key_of(manifest: Manifest) -> str:
    """Return the key of an image: the digest of its manifest."""
    return digest_of(manifests.encode(manifest))


def places(manifest: Manifest) -> dict[str, RegionPlace]:
    """Return where each region is, by name."""
    found, at = {}, 0
    for region in manifest.regions:
        found[region.name] = RegionPlace(at, region.size)
        at += piece_count(region.size) * PIECE_SIZE
    return found


def size_of(manifest: Manifest) -> int:
    """Return the bytes that an image takes up in memory."""
    return sum(piece_count(region.size) * PIECE_SIZE for region in manifest.regions)


def read_whole(image: Image, stop: threading.Event) -> int:
    """Return a memfd with an image, owned by the caller; its seals let no process change it.

    Args:
        image: stays owned by the caller.
        stop: ends the work early, with StoreFailedError.

    Raises:
        DamagedError: the image is damaged.
        StoreFailedError: the operating system refuses, or ``stop`` was set.
        StoreFullError: there is no memory for it.
    """
    with os_errors(f"memory for image {image.name}"):
        fd = memfd.create("mpsguard-image", size_of(image.manifest), fixed=False)
        try:
            _fill(image, fd, stop)
            fcntl.fcntl(
                fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            )
        except BaseException:
            os.close(fd)
            raise
    return fd


def read_into(image: Image, slots: Sequence[memoryview], stop: threading.Event) -> None:
    """Read an image into memory: one slot of 2 MiB for each piece, in their order; what is zero is written as well.

    Raises:
        DamagedError: the image is damaged.
        StoreFailedError: ``stop`` was set.
    """
    pieces = [
        (digest, piece_size(region.size, index))
        for region in image.manifest.regions
        for index, digest in enumerate(region.pieces)
    ]
    work = list(zip(pieces, slots, strict=True))

    def read(part: Sequence[tuple[tuple[Digest | None, int], memoryview]]) -> None:
        for (digest, size), slot in part:
            if stop.is_set():
                raise StoreFailedError(f"image {image.name}: the pool ends")
            image.read_into(digest, slot[:size])

    _in_parts(work, read)


def _fill(image: Image, fd: int, stop: threading.Event) -> None:
    work = list(_stored(image.manifest))

    def read(part: Sequence[tuple[int, Digest, int]]) -> None:
        buffer = memoryview(bytearray(PIECE_SIZE))
        for offset, digest, size in part:
            if stop.is_set():
                raise StoreFailedError(f"image {image.name}: the pool ends")
            image.read_into(digest, buffer[:size])
            done = 0
            while done < size:
                done += os.pwrite(fd, buffer[done:size], offset + done)

    _in_parts(work, read)


def _in_parts(work: Sequence[W], read: Callable[[Sequence[W]], None]) -> None:
    """Have several threads do the work; the first error ends it, and is raised when none is at work any more."""
    with ThreadPoolExecutor(_READERS) as readers:
        running = [readers.submit(read, work[at : at + _BATCH]) for at in range(0, len(work), _BATCH)]
        try:
            for each in running:
                each.result()
        except BaseException:
            readers.shutdown(wait=False, cancel_futures=True)
            raise


def _stored(manifest: Manifest) -> Iterator[tuple[int, Digest, int]]:
    """Yield offset, digest and size of each piece that is not all zero."""
    where = places(manifest)
    for region in manifest.regions:
        for index, digest, size in region.stored():
            yield where[region.name].offset + index * PIECE_SIZE, digest, size
