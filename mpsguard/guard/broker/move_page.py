"""Move page: what the guard asks of programs, in a file of its own that they may read (docs/concepts/moves.md).

No system call of the guard may take a lock that a stranger can hold, and a process that writes to a file holds that
file's lock for as long as it likes. So nothing is written into a program's own memory. The page has its name once it
is whole, and from then on only stores into a mapping change it: neither its size nor its mode is changed, nor is it
removed. The next guard uses the one that is there.
"""

import errno
import mmap
import os
import stat
import struct
import threading
from contextlib import suppress
from typing import Final, NamedTuple

from mpsguard.linux.files.directory import Directory

NAME: Final = "moves"
_DRAFT: Final = f"{NAME}.new"
MODE: Final = 0o644
BYTES: Final = 4096
SLOT: Final = struct.Struct("<QIHH")
"""The program's token (0: nothing is asked), number of the request, share in hundredths of a percent, what is asked
beside it. mpsguard/preload/second/request.c reads it."""
SHUT_DOWN: Final = 1
_MADV_POPULATE_WRITE: Final = 23
"""Linux 5.14: an error where a store would be SIGBUS, because the file system has no room for the page."""
_SLOTS: Final = BYTES // SLOT.size


class MoveRequest(NamedTuple):
    """What a program is asked."""

    token: int
    """The program's own word, by which it knows that it is meant."""
    number: int
    share: float | None
    """Percent of the SMs, for the driver's own variable; None: as the program's environment has it."""
    shut_down: bool
    """Whether it is to shut its old connections down."""


class MovePage:
    """Owns the page of one domain. `made` is called on a thread, all else in the event loop."""

    def __init__(self) -> None:
        """There is none until it is made."""
        self._lock = threading.Lock()
        """Never held over a system call that another process can delay."""
        self._map: mmap.mmap | None = None
        self._inode: tuple[int, int] | None = None
        self._asked: dict[int, MoveRequest] = {}

    def made(self, directory: Directory) -> None:
        """Have the page in a directory, made if it is missing; OSError, also if the one there is not whole."""
        found = _whole(directory)
        if found is not None and (found.st_dev, found.st_ino) == self._inode:
            return
        page, status = _drafted(directory) if found is None else _opened(directory)
        with self._lock:
            self._map, self._inode = page, (status.st_dev, status.st_ino)
            for slot, request in self._asked.items():
                _write(page, slot, request)

    def ask(self, request: MoveRequest) -> bool:
        """Ask a program, until `take_back`; False if there is no page, or no room in it."""
        with self._lock:
            free = next((slot for slot in range(_SLOTS) if slot not in self._asked), None)
            if self._map is None or free is None:
                return False
            try:
                _find_room(self._map)
            except OSError:
                return False
            self._asked[free] = request
            _write(self._map, free, request)
            return True

    def take_back(self, number: int) -> None:
        """Ask for that no more."""
        with self._lock:
            for slot in [slot for slot, request in self._asked.items() if request.number == number]:
                del self._asked[slot]
                # Where a page that was written to disk has no room, the program answers a request that has ended.
                with suppress(OSError):
                    if self._map is not None:
                        _find_room(self._map)
                        _write(self._map, slot, None)


def _whole(directory: Directory) -> os.stat_result | None:
    """Return the page's status; None if there is none.

    Raises:
        PermissionError: it would have to be changed, and another user may hold its lock, on XFS one that reads it, too.
    """
    if not directory.check_unheld(NAME):
        return None
    found = directory.status(NAME)
    if found is not None and (stat.S_IMODE(found.st_mode), found.st_size) != (MODE, BYTES):
        what = f"has mode {stat.S_IMODE(found.st_mode):04o} and {found.st_size} bytes, not {MODE:04o} and {BYTES}"
        raise PermissionError(
            errno.EPERM, f"{what}, and other users may have it open; remove it", str(directory.path / NAME)
        )
    return found


def _opened(directory: Directory) -> tuple[mmap.mmap, os.stat_result]:
    """Return the mapping of the page that is there, with no request in it."""
    fd = directory.open_file(NAME, os.O_RDWR, MODE)
    try:
        return _mapped(fd), os.fstat(fd)
    finally:
        os.close(fd)


def _drafted(directory: Directory) -> tuple[mmap.mmap, os.stat_result]:
    """Make the page, whole before another user can open it or it has its name."""
    directory.remove(_DRAFT)
    fd = directory.open_file(_DRAFT, os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(fd, 0, BYTES)
        page = _mapped(fd)
        os.fchmod(fd, MODE)
        os.rename(_DRAFT, NAME, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
        return page, os.fstat(fd)
    except BaseException:
        with suppress(OSError):
            directory.remove(_DRAFT)
        raise
    finally:
        os.close(fd)


def _mapped(fd: int) -> mmap.mmap:
    page = mmap.mmap(fd, BYTES, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE)
    _find_room(page)
    page[:] = bytes(BYTES)
    return page


def _find_room(page: mmap.mmap) -> None:
    """Raise OSError if a store into the page would end this process: a stranger may fill the file system."""
    try:
        page.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # before Linux 5.14
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), NAME) from None


def _write(page: mmap.mmap, slot: int, request: MoveRequest | None) -> None:
    """Write a slot; the token comes last, and goes first."""
    at = slot * SLOT.size
    page[at : at + 8] = bytes(8)
    if request is None:
        return
    flags = SHUT_DOWN if request.shut_down else 0
    packed = SLOT.pack(request.token, request.number, round(100 * (request.share or 0.0)), flags)
    page[at + 8 : at + SLOT.size] = packed[8:]
    page[at : at + 8] = packed[:8]
