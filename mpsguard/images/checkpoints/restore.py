"""Fills a new session from an image: all of it, or nothing.

Every region is allocated and filled before the first one is given to the vault, and the forward state is published
last. So a program that finds a published state finds all regions whole, and one that finds none starts afresh, whatever
moment this process died at.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from mpsguard.images.checkpoints.errors import RestoreError
from mpsguard.images.checkpoints.piece_table import DIGEST
from mpsguard.images.checkpoints.pieces import runs
from mpsguard.images.checkpoints.session_regions import OWN_PREFIX
from mpsguard.images.checkpoints.targets import HostTarget, Target
from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import RegionImage
from mpsguard.images.store.pieces import piece_size
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.vault.client.region import Chunk
from mpsguard.vault.client.session import Session
from mpsguard.vault.wire.errors import VaultError
from mpsguard.vault.wire.region import LeaseRole, RegionRecord

if TYPE_CHECKING:
    from mpsguard.images.checkpoints.cuda_target import CudaFiller

_PART: Final = 16
"""Pieces that a reader reads in turn."""
_READERS: Final = min(32, 2 * len(os.sched_getaffinity(0)))
"""Each reads and copies, for host memory it compares the digest, too; while it waits for the disk, others work."""


def restore(session: Session, image: Image, *, device: int = 0) -> None:
    """Make the regions of an image in a session, at the same addresses, and publish its forward state.

    Regions of these names, or at these addresses, that the session has already are released first: without a published
    state, they are what a restoration left that was interrupted, or a program that died before its first publication.

    Args:
        session: its writer's, in which nothing was published yet.
        image: stays owned by the caller.
        device: CUDA's ordinal of the GPU for the regions that lay on one.

    Raises:
        RestoreError: something was published already, or the forward state does not fit into the session.
        DamagedError: the image is damaged.
        VaultError: a region cannot be made; LeaseHeldError: another process maps a left one.
        Exception: the backend's errors. Nothing of the image is left in the session after an exception.
    """
    manifest = image.manifest
    if session.role is not LeaseRole.WRITER or session.state() is not None:
        raise RestoreError(f"session {session.name!r} has a state already, or this process does not write it")
    if len(manifest.forward_state) > session.capacity:
        size = len(manifest.forward_state)
        raise RestoreError(f"image {image.name}: {size} bytes of state; join with capacity={size} or more")
    for name in list(session.names()):
        if _is_in_the_way(session.describe(name), manifest.regions):
            session.release(name)
    with ExitStack() as undo:
        target_of = targets(device, undo)
        filled = [(region, target_of(region)) for region in manifest.regions]
        fill(image, filled)
        made: list[str] = []
        try:
            for region, target in filled:
                made.append(region.name)
                give(session, region, target)
            session.publish(manifest.forward_state)
        except BaseException:
            for name in made:
                with suppress(VaultError):
                    session.release(name)
            raise


def _is_in_the_way(left: RegionRecord, regions: Sequence[RegionImage]) -> bool:
    """Return whether a region has the name, or addresses, of one of an image."""

    def overlaps(region: RegionImage) -> bool:
        start, va = left.layout.va, region.va
        return start is not None and va is not None and start < va + region.size and va < start + left.layout.size

    return any(region.name == left.name or overlaps(region) for region in regions)


def give(session: Session, region: RegionImage, target: Target) -> None:
    """Make a region of filled memory in a session; raise VaultError."""
    fds = target.export()
    try:
        chunks = [Chunk(fd, size) for fd, size in zip(fds, region.sizes, strict=True)]
        made = session.create(region.name, chunks, va=region.va, gpu=target.gpu, metadata=region.metadata)
    finally:
        close_all(fds)
    if region.sealed:
        made.seal(region.sealed)


def fill(
    image: Image, filled: Sequence[tuple[RegionImage, Target]], before: Mapping[str, RegionImage] | None = None
) -> int:
    """Read pieces by several threads, and compare all with their digests; the first error ends that, and is raised.

    Args:
        image: stays owned by the caller.
        filled: the image's regions, with their memory.
        before: regions of an image that has filled the same memory, by name: what is equal is not read again.

    Returns:
        Bytes that were read, or cleared.
    """
    parts: list[tuple[RegionImage, Target, Sequence[int]]] = []
    compared: list[tuple[RegionImage, Target, Sequence[int]]] = []
    for region, target in filled:
        wanted = _differing(region, (before or {}).get(region.name))
        step = max(1, min(_PART, len(wanted) // _READERS))
        parts += [(region, target, wanted[at : at + step]) for at in range(0, len(wanted), step)]
        if target.digests_itself and wanted:
            compared.append((region, target, wanted))

    def read(region: RegionImage, target: Target, indices: Sequence[int]) -> int:
        total, whole = 0, region.size
        stored: list[int] = []
        with target.filling() as buffer:
            for index in indices:
                if region.pieces[index] is None:
                    size = piece_size(whole, index)
                    target.clear(index, size)
                    total += size
                else:
                    stored.append(index)
            for run in runs(stored, target.batch):
                length = 0
                for index in run:
                    size = piece_size(whole, index)
                    content = buffer[length : length + size]
                    image.read_into(region.pieces[index], content, checked=not target.digests_itself)
                    length += size
                target.write(run.start, buffer[:length])
                total += length
        return total

    with ThreadPoolExecutor(_READERS) as pool:
        preparing = [pool.submit(target.prepare) for _, target, _ in compared]
        running = [pool.submit(read, *part) for part in parts]
        try:
            total = sum(each.result() for each in running)
            for each in preparing:
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for region, target, indices in compared:
        _compare(image, region, indices, target.digests(indices))
    return total


def _differing(region: RegionImage, old: RegionImage | None) -> Sequence[int]:
    if old is None:
        return range(len(region.pieces))
    return [index for index, (new, had) in enumerate(zip(region.pieces, old.pieces, strict=True)) if new != had]


def _compare(image: Image, region: RegionImage, indices: Sequence[int], found: bytes) -> None:
    hexadecimal = found.hex()
    for number, index in enumerate(indices):
        digest, at = region.pieces[index], 2 * DIGEST * number
        if digest is not None and hexadecimal[at : at + 2 * DIGEST] != digest:
            image.refuse(digest)


def targets(device: int, undo: ExitStack, *, in_place: bool = False) -> Callable[[RegionImage], Target]:
    """Return what makes the memory of a region; ``undo`` gives it back.

    Args:
        device: CUDA's ordinal of the GPU for regions that lie on one.
        undo: closes all that was made.
        in_place: map GPU memory at its region's address while it is filled (`Target.keep_mapped`).
    """
    fillers: list[CudaFiller] = []

    def make(region: RegionImage) -> Target:
        if region.name.startswith(OWN_PREFIX):
            raise RestoreError(f"region {region.name!r}: a name of mpsguard's own")
        target: Target
        if region.gpu is None:
            target = HostTarget(region.sizes)
        else:
            from mpsguard.images.checkpoints.cuda_target import CudaFiller, CudaTarget  # noqa: PLC0415 - needs cuda-bindings

            if not fillers:
                fillers.append(CudaFiller(device, _READERS))
                undo.callback(fillers[0].close)
            target = CudaTarget(region.sizes, fillers[0], region.va if in_place else None)
        undo.callback(target.close)
        return target

    return make
