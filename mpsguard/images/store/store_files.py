"""The directory of a store: opening and checking it, reading its files as a stranger's, and its locks.

A store is on a local file system; its locks are those of flock(2), which end with the process that holds them.
"""

import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from mpsguard.images.store.errors import ForeignStoreError, StoreBusyError, os_errors

PIECES: Final = "pieces"
"""Directories by the first two digits of a digest; in them a file for each piece, by its digest."""
IMAGES: Final = "images"
"""A manifest for each image."""
REMOVED: Final = "removed"
"""Manifests that were removed or replaced; until the next collection, since a process may be reading the image."""
DRAFTS: Final = "drafts"
"""A directory for each draft."""
_SUBDIRECTORIES: Final = (PIECES, IMAGES, REMOVED, DRAFTS)
_VERSION_FILE: Final = "version"
_VERSION: Final = b"mpsguard images 1\n"
_LOCK_FILE: Final = "lock"

_RECORD: Final = struct.Struct("hhqqi4x")
"""``struct flock`` of 64-bit Linux: type, whence, start, length (0: all), pid."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW

LOCK_DEADLINE: Final = 30.0
"""Seconds after which a lock that another process holds is given up. All of them are held for milliseconds."""


class StoreFiles:
    """Owns a descriptor of the store's directory; all of its files are opened relative to it."""

    def __init__(self, path: Path, fd: int, *, own: bool) -> None:
        self.path = path
        self.fd = fd
        self.own = own
        """Whether it belongs to this process's user; another user's is read and never written."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a store, and make it if there is none.

        Raises:
            ForeignStoreError: something else than a store is there, or others may write to it.
            StoreFailedError: the operating system refuses.
        """
        with os_errors(str(path)):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):
                    path.mkdir(mode=0o700)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                files = cls(path, fd, own=_is_own(path, os.fstat(fd)))
                files._check_version()
            except BaseException:
                os.close(fd)
                raise
        return files

    def _check_version(self) -> None:
        with suppress(FileNotFoundError):
            found = self.read(_VERSION_FILE, len(_VERSION))
            if found == _VERSION:
                if self.own:
                    self._make_directories()
                return
            # Cut off: the process that made the store was killed.
            if not _VERSION.startswith(found):
                raise ForeignStoreError(f"{self.path}: a store of another version, or none")
        if not self.own:
            raise ForeignStoreError(f"{self.path}: another user's directory, and no store of images")
        # The version is on disk before anything else of a store is.
        if set(self.listed(".")) - {_VERSION_FILE} and not self._has_version():
            raise ForeignStoreError(f"{self.path}: no store of images, and not empty")
        version = os.open(_VERSION_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self.fd)
        try:
            os.write(version, _VERSION)
            os.fsync(version)
        finally:
            os.close(version)
        os.fsync(self.fd)
        self._make_directories()

    def _has_version(self) -> bool:
        """Return whether another process has made the store meanwhile."""
        try:
            return self.read(_VERSION_FILE, len(_VERSION)) == _VERSION
        except FileNotFoundError:
            return False

    def _make_directories(self) -> None:
        for name in _SUBDIRECTORIES:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.fd)

    def close(self) -> None:
        """Close the descriptor; safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def is_gone(self) -> bool:
        """Whether the directory was removed."""
        return os.fstat(self.fd).st_nlink == 0

    def check_own(self) -> None:
        """Raise ForeignStoreError unless the store belongs to this process's user."""
        if not self.own:
            raise ForeignStoreError(f"{self.path}: the store of another user can only be read")

    def open_file(self, name: str, access: int = os.O_RDONLY) -> int:
        """Return a descriptor of a file, to read unless ``access`` says more.

        Raises:
            OSError: there is none, or it is no regular file: nothing else is opened for long, or followed.
        """
        fd = self.open_of_any_kind(name, access)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "no regular file")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_of_any_kind(self, name: str, access: int = os.O_RDONLY) -> int:
        """Return a descriptor to read by offset alone (preadv), without asking the kernel what it is of.

        Such a read is refused at once if it is of a directory, a FIFO or a terminal; O_NONBLOCK is for other devices.

        Raises:
            OSError: there is no such file, or it is a link, which is not followed.
        """
        return os.open(name, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.fd)

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file, at most one byte more than ``most``."""
        fd = self.open_file(name)
        try:
            return read_at_most(fd, most)
        finally:
            os.close(fd)

    def listed(self, name: str) -> list[str]:
        """Return the names in a directory; none if there is no such directory."""
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=self.fd)
        except FileNotFoundError:
            return []
        try:
            return os.listdir(fd)  # noqa: PTH208 - of a descriptor
        finally:
            os.close(fd)

    def sync_directory(self, name: str) -> None:
        """Return when the entries of a directory are on disk."""
        fd = os.open(name, _DIRECTORY, dir_fd=self.fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the store's lock together with other drafts: no collector is at work meanwhile."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the store's lock alone."""
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        # A descriptor for each time: threads of one process would share the lock of one descriptor.
        fd = os.open(_LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self.fd)
        try:
            lock(fd, how, f"the store {self.path}")
            yield
        finally:
            os.close(fd)


def lock(fd: int, how: int, what: str, within: float = LOCK_DEADLINE) -> None:
    """Lock a file by flock(2).

    Raises:
        StoreBusyError: another process holds ``what``, the file's name in that text, for ``within`` seconds.
    """
    _until(lambda: try_lock(fd, how), what, within)


def try_lock(fd: int, how: int) -> bool:
    """Lock a file by flock(2), and return whether that was possible at once."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def hold(fd: int, what: str, within: float = LOCK_DEADLINE) -> None:
    """Lock a file that other users may read against `try_remove_lock`, for as long as it is open; as `lock`.

    By a lock that a process which may only read cannot take alone (fcntl(2), of an open file): flock(2) would let every
    reader keep all others out.
    """
    _until(lambda: _try_record_lock(fd, fcntl.F_RDLCK), what, within)


def try_remove_lock(fd: int) -> bool:
    """Return whether no process holds a file, of a descriptor for writing; then none can as long as it is open."""
    # An earlier version's processes hold it by flock(2).
    return _try_record_lock(fd, fcntl.F_WRLCK) and try_lock(fd, fcntl.LOCK_EX)


def _try_record_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _RECORD.pack(kind, os.SEEK_SET, 0, 0, 0))
    except BlockingIOError:
        return False
    except PermissionError:
        # EACCES and EAGAIN mean the same here (fcntl(2)).
        return False
    return True


def _until(done: Callable[[], bool], what: str, within: float) -> None:
    until = time.monotonic() + within
    pause = 0.0005
    while not done():
        if time.monotonic() >= until:
            raise StoreBusyError(f"another process holds {what} locked")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def read_at_most(fd: int, most: int) -> bytes:
    """Return the content of a file, at most one byte more than ``most``."""
    parts = []
    left = most + 1
    while left and (part := os.read(fd, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: memoryview | bytes) -> None:
    """Write all of ``data``; a regular file takes less at a time when it is large."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _is_own(path: Path, found: os.stat_result) -> bool:
    if found.st_mode & 0o022:
        raise ForeignStoreError(f"{path}: others may write to it; chmod go-w, if its content is yours")
    return found.st_uid == os.geteuid()
