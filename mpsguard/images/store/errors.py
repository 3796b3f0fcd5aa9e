"""The errors of images: each is an ImageError, and its text is one line for the user."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class ImageError(Exception):
    """An operation on images that was refused or failed; the images that were there are untouched."""


class UnknownImageError(ImageError):
    """There is no image of that name."""


class BadNameError(ImageError):
    """The text is no name of an image."""


class BadPieceError(ImageError):
    """The data is empty, or longer than a piece."""


class UnknownPieceError(ImageError):
    """A manifest refers to a piece that its draft neither put nor found."""


class BadManifestError(ImageError):
    """The manifest contradicts itself, is too large, or is of a version that this program does not know."""


class DamagedError(ImageError):
    """What is on disk is not what was stored.

    Attributes:
        digest: of the piece; None if the manifest itself is damaged.
        region: first region that needs the piece; None if unknown.
    """

    def __init__(self, message: str, *, digest: str | None = None, region: str | None = None) -> None:
        super().__init__(message)
        self.digest = digest
        self.region = region


class QuotaError(ImageError):
    """The store's quota is exhausted."""


class StoreFullError(ImageError):
    """The file system, or the user's quota on it, has no room."""


class StoreBusyError(ImageError):
    """Another process held a lock of the store for too long."""


class StoreFailedError(ImageError):
    """The operating system refused an operation on the store's files."""


class ForeignStoreError(ImageError):
    """The directory is no store, belongs to another user, or others may write to it."""


class TensorFileError(ImageError):
    """A file of tensors that cannot be read or written, or an image that fits none."""


class StreamError(ImageError):
    """A stream that breaks off, or in which something else comes than may come there."""


@contextmanager
def os_errors(what: str, failed: type[ImageError] = StoreFailedError) -> Iterator[None]:
    """Raise StoreFullError or ``failed`` in the place of an OSError; ``what`` begins its text."""
    try:
        yield
    except OSError as error:
        text = f"{what}: {error.strerror or error}"
        raise (StoreFullError if error.errno in _NO_ROOM else failed)(text) from error
