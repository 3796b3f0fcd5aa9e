"""The bytes of all pieces of a store, in a file of their own: what a quota is compared with.

Room is taken before a piece is written, so that several drafts together cannot exceed a quota. What a killed process
took and did not use counts until the next collection.
"""

import fcntl
import os
from collections.abc import Callable
from typing import Final

from mpsguard.images.store.errors import QuotaError
from mpsguard.images.store.store_files import StoreFiles, lock

_FILE: Final = "stored"
_DIGITS: Final = 20


class StoredBytes:
    """Reads and changes the number. All methods raise OSError where the operating system refuses."""

    def __init__(self, files: StoreFiles, count: Callable[[], int]) -> None:
        """``count``: counts the bytes of all pieces anew; called where the file is missing or damaged."""
        self._files = files
        self._count = count

    def take(self, size: int, quota: int | None) -> None:
        """Add ``size`` bytes.

        Raises:
            QuotaError: then there would be more than ``quota``; nothing was added.
        """
        self._change(size, quota)

    def give_back(self, size: int) -> None:
        """Subtract ``size`` bytes."""
        self._change(-size, None)

    def set(self, size: int) -> None:
        """Put another number in its place."""
        fd = self._locked()
        try:
            _write(fd, size)
        finally:
            os.close(fd)

    def _change(self, size: int, quota: int | None) -> None:
        fd = self._locked()
        try:
            text = os.pread(fd, _DIGITS + 1, 0)
            before = int(text) if len(text) == _DIGITS and text.isdigit() else self._count()
            if quota is not None and before + size > quota:
                raise QuotaError(
                    f"the store {self._files.path} has a quota of {quota} bytes, of which {before} are taken; "
                    f"{size} more are needed. Remove images, and then what no image needs: mpsguard-ctl image remove"
                )
            _write(fd, max(0, before + size))
        finally:
            os.close(fd)

    def _locked(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(_FILE, flags, 0o600, dir_fd=self._files.fd)
        try:
            lock(fd, fcntl.LOCK_EX, f"the store {self._files.path}")
        except BaseException:
            os.close(fd)
            raise
        return fd


def _write(fd: int, size: int) -> None:
    os.pwrite(fd, b"%0*d" % (_DIGITS, size), 0)
