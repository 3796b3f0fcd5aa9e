"""The directory of a snapshot while it is written: under another name, private, and renamed as a whole."""

import errno
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from mpsguard.images.snapshot.errors import SnapshotError, SnapshotRoomError

SYNC_EVERY: Final = 256 << 20
"""Bytes of a file after which the disk is waited for, so that the wait at its end is short."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class SnapshotDraft:
    """Owns descriptors of the directory and of that around it; both processes of a snapshot have one."""

    def __init__(self, parent: int, name: str) -> None:
        """Take over ``parent`` and open the draft ``name`` in it; raise OSError."""
        self.parent = parent
        self.name = name
        try:
            self._fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except BaseException:
            os.close(parent)
            raise

    @classmethod
    def make(cls, target: Path) -> Self:
        """Make an empty draft of ``target``; raise SnapshotError."""
        try:
            if os.path.lexists(target):
                raise SnapshotError(f"{target} is there already")
            parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            name = f".{target.name}.{secrets.token_hex(8)}.partial"
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
            except BaseException:
                os.close(parent)
                raise
            return cls(parent, name)
        except OSError as error:
            raise disk_error(error, str(target)) from None

    def check_room(self, size: int) -> None:
        """Raise SnapshotRoomError unless ``size`` bytes are free."""
        found = os.fstatvfs(self._fd)
        free = found.f_bavail * found.f_frsize
        if size > free:
            raise SnapshotRoomError(f"no room: {size} bytes are needed, and {free} are free")

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a new file, and wait for the disk; raise OSError."""
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
        with open(fd, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            unsynced = 0
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
                unsynced += len(piece)
                if unsynced >= SYNC_EVERY:
                    os.fdatasync(fd)
                    unsynced = 0
            os.fsync(fd)

    def sync(self) -> None:
        """Wait until the names of the files are on the disk; raise OSError."""
        os.fsync(self._fd)

    def commit(self, target: Path) -> None:
        """Give it its name; raise SnapshotError."""
        try:
            # An empty directory would be replaced.
            if os.path.lexists(target):
                raise SnapshotError(f"{target} is there already")
            os.rename(self.name, target.name, src_dir_fd=self.parent, dst_dir_fd=self.parent)
            os.fsync(self.parent)
        except OSError as error:
            raise disk_error(error, str(target)) from None

    def discard(self) -> None:
        """Remove it with what is in it, if it still has this name; what cannot be removed stays."""
        with suppress(OSError):
            for name in os.listdir(self._fd):  # noqa: PTH208 - a descriptor
                os.unlink(name, dir_fd=self._fd)
            os.rmdir(self.name, dir_fd=self.parent)

    def close(self) -> None:
        """Give the descriptors back; the directory stays."""
        os.close(self._fd)
        os.close(self.parent)


def disk_error(error: OSError, what: str) -> SnapshotError:
    """Return the error to be raised for one of the disk's."""
    kind = SnapshotRoomError if error.errno in _NO_ROOM else SnapshotError
    return kind(f"{what}: {error.strerror or error}")
