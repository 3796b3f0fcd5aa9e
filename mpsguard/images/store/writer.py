"""The draft of an image: pieces are put one by one, and a manifest makes them an image."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpsguard.images.store import image_files
from mpsguard.images.store.draft_directory import DraftDirectory
from mpsguard.images.store.errors import StoreFailedError, UnknownPieceError, os_errors
from mpsguard.images.store.image import HeldPieces
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.piece_files import PieceFiles, Presence
from mpsguard.images.store.pieces import PIECE_SIZE, Digest, bytes_of, piece_digest
from mpsguard.images.store.store_files import StoreFiles
from mpsguard.images.store.stored_bytes import StoredBytes
from mpsguard.linux.closing import Closing

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class ImageWriter(Closing):
    """A draft. Leaving it without `commit` abandons it; the previous image of that name is untouched.

    `put` and `has` may be called by several threads at once. The pieces of an abandoned draft stay until the next
    collection, so that a second try finds them.
    """

    def __init__(
        self,
        files: StoreFiles,
        pieces: PieceFiles,
        stored: StoredBytes,
        name: str,
        *,
        quota: int | None,
        held: HeldPieces | None,
    ) -> None:
        self.name = name
        self._files = files
        self._pieces = pieces
        self._stored = stored
        self._quota = quota
        self._mutex = threading.Lock()
        self._noted: dict[Digest, int] = {}
        """Size of each piece that the collector spares for this draft."""
        self._unsynced: set[Digest] = set()
        self.written = 0
        """Bytes of the pieces that the store lacked."""
        with os_errors(f"image {name}"), files.shared():
            self._mark = pieces.damage_mark()
            self._directory: DraftDirectory | None = DraftDirectory.make(files)
        self._held: Mapping[Digest, int] = held.sizes if held is not None and held.mark == self._mark else {}

    def put(self, data: ReadableBuffer) -> Digest | None:
        """Store a piece, unless the store has it, and return its digest.

        Args:
            data: 1 byte to 2 MiB.

        Returns:
            What belongs into `RegionImage.pieces`: None if all bytes are zero, for then nothing is stored.

        Raises:
            QuotaError: the store's quota is exhausted.
            StoreFullError: the file system is full.
            StoreFailedError: the operating system refuses.
        """
        view = bytes_of(data)
        digest = piece_digest(view)
        if digest is None:
            return None
        size = len(view)
        with os_errors(f"image {self.name}"):
            presence = self._note(digest, size)
            if presence is Presence.KEPT:
                return digest
            is_new = presence is Presence.ABSENT
            try:
                if is_new:
                    is_new = self._pieces.write(digest, view, self._draft.path, replace=False)
                elif not self._matches(digest):
                    self._pieces.write(digest, view, self._draft.path, replace=True)
            except BaseException:
                with self._mutex:
                    del self._noted[digest]
                if is_new:
                    self._stored.give_back(size)
                raise
            if presence is Presence.ABSENT and not is_new:
                # Counted by the draft that has written it.
                self._stored.give_back(size)
        with self._mutex:
            self._unsynced.add(digest)
            self.written += size if is_new else 0
        return digest

    def holds(self, digest: Digest) -> bool:
        """Return whether the image before has a piece, without a look at the store; if so, it counts as put."""
        return digest in self._held

    def has(self, digest: Digest) -> bool:
        """Return whether the store has a piece; if so, it counts as put.

        Raises:
            StoreFailedError: the operating system refuses.
        """
        if self.holds(digest):
            return True
        with os_errors(f"image {self.name}"):
            size = self._pieces.size(digest)
            if size is None or not 1 <= size <= PIECE_SIZE:
                return False
            match self._note(digest, size, reserve=False):
                case Presence.KEPT:
                    return True
                case Presence.UNSURE if self._matches(digest):
                    with self._mutex:
                        self._unsynced.add(digest)
                    return True
                case _:
                    with self._mutex:
                        del self._noted[digest]
                    return False

    def _note(self, digest: Digest, size: int, *, reserve: bool = True) -> Presence:
        """Have the collector spare a piece; KEPT also if this draft has done so before, or the image before has it."""
        if self._held.get(digest) == size:
            return Presence.KEPT
        with self._mutex:
            if digest in self._noted:
                return Presence.KEPT
            with self._files.shared():
                self._draft.note(digest, size)
                presence = self._pieces.presence(digest, size)
                if presence is Presence.ABSENT and reserve:
                    self._stored.take(size, self._quota)
            self._noted[digest] = size
        return presence

    def _matches(self, digest: Digest) -> bool:
        try:
            return self._pieces.matches(digest)
        except OSError:
            return False

    def commit(self, manifest: Manifest) -> None:
        """Make the draft the image of its name, and return when all of it is on disk; errors as `commit_held`."""
        self.commit_held(manifest).close()

    def commit_held(self, manifest: Manifest) -> HeldPieces:
        """Make the draft the image of its name, and return its pieces, for `ImageStore.begin`, when all is on disk.

        Raises:
            UnknownPieceError: the manifest needs a piece that was not put.
            BadManifestError: the manifest is too large.
            StoreFullError: the file system is full.
            StoreFailedError: the operating system refuses.
        """
        draft, needed, there = self._draft, manifest.pieces(), {**self._held, **self._noted}
        for digest, size in needed.items():
            if there.get(digest) != size:
                region = manifest.place_of(digest)
                raise UnknownPieceError(f"image {self.name}: a piece of region {region} was not put: {digest}")
        with os_errors(f"image {self.name}"):
            self._pieces.keep([digest for digest in needed if digest in self._unsynced])
            fd = image_files.publish(self._files, self.name, manifest, draft.path)
        held = HeldPieces(fd, needed, self._mark)
        self.close()
        return held

    @property
    def _draft(self) -> DraftDirectory:
        if self._directory is None:
            raise StoreFailedError(f"image {self.name}: this draft has ended")
        return self._directory

    def close(self) -> None:
        """End the draft; safe to call twice."""
        if self._directory is not None:
            self._directory.close()
            self._directory = None
