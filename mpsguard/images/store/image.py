"""An image that is open for reading; every byte is compared with its digest, here or by the caller."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from mpsguard.images.store import image_files
from mpsguard.images.store.errors import DamagedError, StoreFailedError
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.piece_files import PieceFiles
from mpsguard.images.store.pieces import Digest
from mpsguard.linux.closing import Closing

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_DAMAGED: Final = "is damaged"
_OF_THE_PROCESS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that tell nothing of the disk."""


class Damage(msgspec.Struct, frozen=True):
    """A piece that is not what was stored."""

    digest: Digest
    region: str
    """First region that needs it."""
    reason: str


class Image(Closing):
    """Owns a locked descriptor of the manifest: as long as it is open, no collector removes the image's pieces."""

    def __init__(self, fd: int, name: str, pieces: PieceFiles, *, own: bool) -> None:
        """Take ownership of ``fd``, which is closed if the manifest cannot be read."""
        self._fd = fd
        self.name = name
        self._pieces = pieces
        self._own = own
        try:
            self.manifest: Manifest = image_files.read(fd, name)
        except BaseException:
            self.close()
            raise

    def read_into(self, digest: Digest | None, buffer: WriteableBuffer, *, checked: bool = True) -> None:
        """Read a piece into ``buffer``, which has the piece's size; may be called by several threads at once.

        Args:
            digest: as `RegionImage.pieces` has it; None fills the buffer with zeros.
            buffer: where to; undefined after an error.
            checked: False leaves the comparison with the digest to the caller, which calls `refuse` if it fails.

        Raises:
            DamagedError: the piece is missing, not what was stored, or cannot be read.
            StoreFailedError: this process or the machine has no descriptor or no memory left.
        """
        if digest is None:
            view = memoryview(buffer).cast("B")
            view[:] = bytes(len(view))
            return
        reason = self._read(digest, buffer, checked=checked)
        if reason is not None:
            raise self._damaged(digest, reason)

    def refuse(self, digest: Digest) -> NoReturn:
        """Raise DamagedError for a piece that was read unchecked and is not what was stored."""
        with suppress(OSError):
            self._distrust(digest)
        raise self._damaged(digest, _DAMAGED)

    def _damaged(self, digest: Digest, reason: str) -> DamagedError:
        region = self.manifest.place_of(digest)
        text = f"image {self.name}: piece {digest} of region {region} {reason}"
        return DamagedError(text, digest=digest, region=region)

    def _distrust(self, digest: Digest) -> None:
        """Have our own store write a piece anew when it is next put."""
        if self._own:
            self._pieces.distrust(digest)

    def _read(self, digest: Digest, buffer: WriteableBuffer, *, checked: bool = True) -> str | None:
        """Return what is wrong with a piece, or None."""
        try:
            if self._pieces.read_into(digest, buffer, checked=checked):
                return None
            self._distrust(digest)
        except FileNotFoundError:
            if self._own:
                with suppress(OSError):
                    self._pieces.note_damage()
            return "is missing"
        except OSError as error:
            if error.errno in _OF_THE_PROCESS:
                raise StoreFailedError(f"image {self.name}: {error.strerror}") from error
            return f"cannot be read: {error.strerror}"
        return _DAMAGED

    def verify(self, checked: Callable[[int], object] = int) -> Iterator[Damage]:
        """Read all pieces, and yield those that are damaged.

        Args:
            checked: called with the size of each piece after it was read.

        Raises:
            StoreFailedError: as `read_into`.
        """
        for digest, size in self.manifest.pieces().items():
            reason = self._read(digest, bytearray(size))
            if reason is not None:
                yield Damage(digest, self.manifest.place_of(digest) or "", reason)
            checked(size)

    def close(self) -> None:
        """Close the image; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class HeldPieces(Closing):
    """Owns a locked descriptor of the manifest: as long as it is open, no collector removes the image's pieces."""

    def __init__(self, fd: int, sizes: Mapping[Digest, int], mark: int) -> None:
        """Take ownership of ``fd``."""
        self._fd = fd
        self.sizes: Final = sizes
        """Size in bytes of each piece, by digest; all of them are on disk."""
        self.mark: Final = mark
        """`PieceFiles.damage_mark` when the image's draft began: behind another one, nothing here is relied on."""

    def close(self) -> None:
        """Let the pieces go; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
