"""Garbage collection: removes the pieces that no image, no reader and no draft needs, while others work.

The store's lock is held alone for one directory of pieces at a time, so that a draft waits for milliseconds only.
Meanwhile no draft can begin to rely on a piece, and no image can appear.
"""

import os

import msgspec

from mpsguard.images.store import image_files
from mpsguard.images.store.draft_directory import FoundDraft
from mpsguard.images.store.piece_files import PieceFiles
from mpsguard.images.store.store_files import DRAFTS, StoreFiles, try_remove_lock
from mpsguard.images.store.stored_bytes import StoredBytes


class Collected(msgspec.Struct, frozen=True):
    """What a collection removed."""

    pieces: int
    bytes: int
    """Of these pieces."""
    drafts: int
    """Drafts of killed processes."""
    images: int
    """Manifests of removed and replaced images that no process reads any longer."""


class _Needed:
    """The digests of all pieces that are needed, grown by what has come since the last look."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self.digests: set[bytes] = set()
        self.drafted: dict[bytes, int] = {}
        """Size of each piece that a living draft relies on."""
        self._seen: set[tuple[str, int, int]] = set()

    def look(self) -> None:
        """Read manifests and logs of drafts; the store's lock is held alone."""
        for path, name in image_files.current(self._files):
            self._add(path, name)
        for path in image_files.removed(self._files):
            self._add(path, "that was removed")
        for name in self._files.listed(DRAFTS):
            self.drafted.update(FoundDraft(self._files, name).noted())
        self.digests |= self.drafted.keys()

    def _add(self, path: str, name: str) -> None:
        found = os.stat(path, dir_fd=self._files.fd, follow_symlinks=False)
        key = (path, found.st_ino, found.st_ctime_ns)
        if key in self._seen:
            return
        fd = self._files.open_file(path)
        try:
            self.digests |= {bytes.fromhex(digest) for digest in image_files.read(fd, name).pieces()}
        finally:
            os.close(fd)
        self._seen.add(key)


def collect(files: StoreFiles, pieces: PieceFiles, stored: StoredBytes) -> Collected:
    """Collect garbage. All errors of the operating system are raised as OSError.

    Raises:
        DamagedError: the manifest of an image is damaged. What it needs is unknown, so that nothing is removed.
        BadManifestError: likewise, of another version.
    """
    needed = _Needed(files)
    with files.exclusive():
        drafts = sum(FoundDraft(files, name).remove_if_dead() for name in files.listed(DRAFTS))
        images = sum(_removed_if_unread(files, path) for path in image_files.removed(files))
        needed.look()
    count, size = 0, 0
    for prefix in pieces.prefixes():
        with files.exclusive():
            needed.look()
            for digest, length in list(pieces.listed(prefix)):
                if bytes.fromhex(digest) not in needed.digests:
                    pieces.remove(digest)
                    count, size = count + 1, size + length
    with files.exclusive():
        needed.look()
        there = {
            bytes.fromhex(digest): length for prefix in pieces.prefixes() for digest, length in pieces.listed(prefix)
        }
        stored.set(sum((needed.drafted | there).values()))
    return Collected(count, size, drafts, images)


def _removed_if_unread(files: StoreFiles, path: str) -> bool:
    fd = files.open_file(path, os.O_RDWR)
    try:
        if not try_remove_lock(fd):
            return False
        os.unlink(path, dir_fd=files.fd)
    finally:
        os.close(fd)
    return True
