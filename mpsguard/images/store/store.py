"""A store of images: one directory of one user, in which equal pieces are stored once."""

from __future__ import annotations

from pathlib import Path

from mpsguard.images.store import collector, image_files
from mpsguard.images.store.collector import Collected
from mpsguard.images.store.errors import os_errors
from mpsguard.images.store.image import HeldPieces, Image
from mpsguard.images.store.piece_files import PieceFiles
from mpsguard.images.store.store_files import StoreFiles
from mpsguard.images.store.stored_bytes import StoredBytes
from mpsguard.images.store.writer import ImageWriter
from mpsguard.linux.closing import Closing


class ImageStore(Closing):
    """The images in a directory. Several processes may use it at once; each method is safe beside all others."""

    def __init__(self, directory: Path, *, quota: int | None = None) -> None:
        """Open a store, and make it if there is none (mode 0700).

        Args:
            directory: of this user; the store of another user can be read if its modes allow that.
            quota: bytes that all pieces may take up together; None for no limit. It is this object's own: other
                processes may have another one.

        Raises:
            ForeignStoreError: something else than a store is there, or others may write to it.
            StoreFailedError: the operating system refuses.
        """
        self.directory = directory
        self._quota = quota
        self._files = StoreFiles.open(directory)
        self._pieces = PieceFiles(self._files)
        self._stored = StoredBytes(self._files, self._count)

    def begin(self, name: str, *, held: HeldPieces | None = None) -> ImageWriter:
        """Begin a draft of an image; several at once, also of one name: the last one that is committed stays.

        Args:
            name: of the image.
            held: of an image that this store has committed; to be closed behind this draft. Its pieces count as put,
                unless one was found damaged since.

        Raises:
            BadNameError: ``name`` is no name of an image.
            ForeignStoreError: the store is another user's.
            StoreFullError: the file system is full.
            StoreFailedError: the operating system refuses.
        """
        image_files.check_image_name(name)
        self._files.check_own()
        return ImageWriter(self._files, self._pieces, self._stored, name, quota=self._quota, held=held)

    def open(self, name: str) -> Image:
        """Open an image for reading.

        Raises:
            BadNameError: ``name`` is no name of an image.
            UnknownImageError: there is none.
            DamagedError: its manifest is damaged.
            BadManifestError: its manifest is of another version, or contradicts itself.
            StoreFailedError: the operating system refuses.
        """
        return Image(image_files.open_locked(self._files, name), name, self._pieces, own=self._files.own)

    @property
    def is_gone(self) -> bool:
        """Whether its directory was removed; another one may have come in its place."""
        return self._files.is_gone

    def check_own(self) -> None:
        """Raise ForeignStoreError unless the store belongs to this process's user."""
        self._files.check_own()

    def names(self) -> list[str]:
        """Return the names of all images, sorted."""
        with os_errors(str(self.directory)):
            return image_files.names(self._files)

    def remove(self, name: str) -> None:
        """Remove an image. What it alone needed is freed by `collect`.

        Raises:
            BadNameError: ``name`` is no name of an image.
            UnknownImageError: there is none.
            ForeignStoreError: the store is another user's.
            StoreFailedError: the operating system refuses.
        """
        self._files.check_own()
        with os_errors(f"image {name}"):
            image_files.remove(self._files, name)

    def read_beside(self, name: str, ending: str, most: int) -> bytes | None:
        """Return a file that was put beside an image's; None if there is none, or it has more than ``most`` bytes.

        Raises:
            BadNameError: ``name`` is no name of an image.
        """
        return image_files.read_beside(self._files, name, ending, most)

    def put_beside(self, name: str, ending: str, data: bytes) -> None:
        """Put a file beside an image's, under the same name and this ending; several processes at once may.

        Raises:
            BadNameError: ``name`` is no name of an image.
            ForeignStoreError: the store is another user's.
            StoreFullError: the file system is full.
            StoreFailedError: the operating system refuses.
        """
        self._files.check_own()
        with os_errors(f"image {name}"):
            image_files.put_beside(self._files, name, ending, data)

    def collect(self) -> Collected:
        """Remove what no image, no reader and no draft needs, and what killed processes left.

        Raises:
            ForeignStoreError: the store is another user's.
            DamagedError: the manifest of an image is damaged: nothing is removed before that image is.
            BadManifestError: likewise, of another version.
            StoreFailedError: the operating system refuses.
        """
        self._files.check_own()
        with os_errors(str(self.directory)):
            return collector.collect(self._files, self._pieces, self._stored)

    def _count(self) -> int:
        return sum(size for prefix in self._pieces.prefixes() for _, size in self._pieces.listed(prefix))

    def close(self) -> None:
        """Close the store; its drafts and images have to be closed before. Safe to call twice."""
        self._files.close()
