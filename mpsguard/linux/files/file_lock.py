"""POSIX record locks on a whole file: what keeps two MPS control daemons out of one pipe directory."""

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Final, Self

from mpsguard.linux.files.directory import Directory

_FLOCK: Final = struct.Struct("hhqqi")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, pid (fcntl(2))."""


class LockHeldError(Exception):
    """Another process holds the lock; ``pid`` is 0 if it lives in another pid namespace or left meanwhile."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path} is locked by process {pid}")
        self.path = path
        self.pid = pid


class FileLock:
    """Owns a locked file. POSIX locks go when *any* descriptor of the file is closed: open it here only."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, directory: Directory, name: str) -> Self:
        """Lock a file at once, made with mode 0600 if it is missing; LockHeldError if another process has the lock.

        A file that is there keeps its mode: to change that would take the lock of its inode, which a user that may
        write to the file can hold for as long as it likes. Neither open(2) nor F_SETLK takes it.
        """
        fd = directory.open_file(name, os.O_RDWR)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = _holder(fd) if error.errno in (errno.EACCES, errno.EAGAIN) else None
            os.close(fd)
            if pid is None:
                raise
            raise LockHeldError(directory.path / name, pid) from None
        return cls(fd)

    def is_at(self, path: Path) -> bool:
        """Return whether ``path`` is still the file that is locked, and no other one."""
        try:
            found, locked = path.lstat(), os.fstat(self._fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (locked.st_dev, locked.st_ino)

    def close(self) -> None:
        """Let go of the lock; the file stays, as the vendor's daemon leaves it. Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def holder(path: Path) -> int | None:
    """Return the pid that holds a lock on ``path``, as the kernel says; None if none does or there is no such file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _holder(fd) or None
    finally:
        os.close(fd)


def _holder(fd: int) -> int:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else int(pid)
