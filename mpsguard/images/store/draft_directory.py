"""The directory of a draft: files that are being written, and a log of the pieces that the draft relies on.

The log is locked as long as the draft lives. What is in it is spared by the collector. If the log is not
locked, a killed process left the directory, and the collector removes it.
"""

import errno
import fcntl
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Self

from mpsguard.images.store.errors import StoreBusyError
from mpsguard.images.store.pieces import Digest
from mpsguard.images.store.store_files import DRAFTS, StoreFiles, lock, try_lock

_LOG: Final = "log"
_RECORD: Final = struct.Struct("<32sI")


class DraftDirectory:
    """Owns the directory and the locked log of a draft."""

    def __init__(self, files: StoreFiles, name: str, log: int) -> None:
        self._files = files
        self.path = f"{DRAFTS}/{name}"
        """Relative to the store."""
        self._log = log
        self._records = 0

    @classmethod
    def make(cls, files: StoreFiles) -> Self:
        """Make one. To be called with the store's lock shared: a collector takes one without a lock for dead."""
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        os.mkdir(f"{DRAFTS}/{name}", 0o700, dir_fd=files.fd)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        log = os.open(f"{DRAFTS}/{name}/{_LOG}", flags, 0o600, dir_fd=files.fd)
        try:
            lock(log, fcntl.LOCK_EX, "a new draft")
        except BaseException:
            os.close(log)
            raise
        return cls(files, name, log)

    def note(self, digest: Digest, size: int) -> None:
        """Spare a piece from now on. To be called with the store's lock shared, by one thread at a time."""
        record = _RECORD.pack(bytes.fromhex(digest), size)
        # At its own place: a record that was cut off is written over by the next one.
        if os.pwrite(self._log, record, self._records * _RECORD.size) == _RECORD.size:
            self._records += 1
        else:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Remove the directory; safe to call twice."""
        if self._log < 0:
            return
        # What cannot be removed now, the next collection removes.
        with suppress(OSError, StoreBusyError), self._files.shared():
            _remove(self._files, self.path)
        os.close(self._log)
        self._log = -1


class FoundDraft:
    """A draft as a collector finds it; to be used with the store's lock held alone."""

    def __init__(self, files: StoreFiles, name: str) -> None:
        self._files = files
        self._path = f"{DRAFTS}/{name}"

    def remove_if_dead(self) -> bool:
        """Remove it unless its process lives, and return whether it was dead."""
        try:
            log = self._files.open_file(f"{self._path}/{_LOG}")
        except FileNotFoundError:
            _remove(self._files, self._path)
            return True
        try:
            if not try_lock(log, fcntl.LOCK_EX):
                return False
            _remove(self._files, self._path)
        finally:
            os.close(log)
        return True

    def noted(self) -> Iterator[tuple[bytes, int]]:
        """Yield the pieces that it relies on: digest and size."""
        try:
            log = self._files.open_file(f"{self._path}/{_LOG}")
        except FileNotFoundError:
            return  # it ended meanwhile
        try:
            while data := os.read(log, 4096 * _RECORD.size):
                yield from _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size])
        finally:
            os.close(log)


def _remove(files: StoreFiles, path: str) -> None:
    # With the store's lock held: shared by the owner, alone by a collector, so that not both do this at once.
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=files.fd)
    try:
        for name in files.listed(path):
            os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(path, dir_fd=files.fd)
