"""fanotify(7): which processes open, write and close the files of a directory, each known by a pidfd.

Needs CAP_SYS_ADMIN and Linux 5.15 (FAN_REPORT_PIDFD). All calls may take as long as the file system likes: they are for
a thread of their own.
"""

import ctypes
import os
import select
import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs

_CLOEXEC: Final = 0x1
_NONBLOCK: Final = 0x2
_REPORT_PIDFD: Final = 0x80
_MARK_ADD: Final = 0x1
_MARK_REMOVE: Final = 0x2
_MARK_ONLYDIR: Final = 0x8
_MARK_EVICTABLE: Final = 0x200

MODIFY: Final = 0x2
CLOSE_WRITE: Final = 0x8
OPEN: Final = 0x20
OVERFLOW: Final = 0x4000
_ON_CHILD: Final = 0x08000000
_ALL: Final = MODIFY | CLOSE_WRITE | OPEN

_EVENT: Final = struct.Struct("=IBBHQii")
_RECORD: Final = struct.Struct("=BBH")
_PIDFD_RECORD: Final = 4
"""FAN_EVENT_INFO_TYPE_PIDFD."""
_BUFFER: Final = 4096
"""Bytes: some hundred events. Each of them brings two descriptors."""
_AT_FDCWD: Final = -100
_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_BTIME_AT: Final = 80
"""Offset of stx_btime in struct statx."""

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fanotify_mark.argtypes = (ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p)


class FileEvent(msgspec.Struct, frozen=True):
    """One event, which the receiver closes."""

    mask: int
    fd: int
    """Open for reading; -1 for OVERFLOW, which is of no file."""
    pid: int
    pidfd: int

    def process(self) -> ProcessKey | None:
        """Return the process that caused it, by start time; None if it has ended meanwhile."""
        if self.pidfd < 0:
            return None
        try:
            # "Pid: -1" once it has been waited for: the number may be another process's then.
            key = procfs.process_key(self.pid)
            return key if b"Pid:\t%d\n" % self.pid in procfs.read_short(f"/proc/self/fdinfo/{self.pidfd}") else None
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close its descriptors; to be called once."""
        for fd in (self.fd, self.pidfd):
            if fd >= 0:
                os.close(fd)


class DirectoryEvents:
    """Watches the files in one directory; those of `watch_file` under any other name, too. Owns one descriptor."""

    def __init__(self, directory: int) -> None:
        """``directory``: a descriptor of it. OSError if the kernel or our rights do not allow it."""
        self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        flags = _CLOEXEC | _NONBLOCK | _REPORT_PIDFD
        self._fd = -1
        try:
            self._fd = _checked(_libc.fanotify_init(flags, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
            self._mark(_MARK_ADD | _MARK_ONLYDIR, _ALL | _ON_CHILD, f"/proc/self/fd/{directory}")
        except OSError:
            self.close()
            raise

    def watch_file(self, fd: int) -> None:
        """Watch an open file itself, however it is reached, until no process has it open; Linux 5.19."""
        self._mark(_MARK_ADD | _MARK_EVICTABLE, _ALL, f"/proc/self/fd/{fd}")

    def leave_file(self, fd: int) -> None:
        """No longer."""
        self._mark(_MARK_REMOVE, _ALL, f"/proc/self/fd/{fd}")

    def wake(self) -> None:
        """End the waiting of `read`; from any thread, and the only thing another thread may call."""
        os.write(self._wake[1], b"x")

    def read(self, within: float | None) -> list[FileEvent]:
        """What has happened, after waiting ``within`` seconds (None: for good) for something to, or until woken."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        poll.poll(None if within is None else within * 1000)
        try:
            data = os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return []
        return list(_events(data))

    def close(self) -> None:
        """Give it back; safe to call twice."""
        for fd in (self._fd, *self._wake):
            if fd >= 0:
                os.close(fd)
        self._fd, self._wake = -1, (-1, -1)

    def _mark(self, flags: int, mask: int, path: str) -> None:
        _checked(_libc.fanotify_mark(self._fd, flags, mask, _AT_FDCWD, os.fsencode(path)))


def born(fd: int) -> float | None:
    """When a file was made, in UNIX seconds; None if its file system does not say (statx(2))."""
    found = ctypes.create_string_buffer(256)
    if _libc.statx(fd, b"", _EMPTY_PATH, _STATX_BTIME, found) < 0:
        return None
    (mask,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BTIME_AT)
    return float(seconds + nanoseconds / 1e9) if mask & _STATX_BTIME else None


def _events(data: bytes) -> Iterator[FileEvent]:
    at = 0
    while at + _EVENT.size <= len(data):
        length, _, _, header, mask, fd, pid = _EVENT.unpack_from(data, at)
        pidfd = -1
        record = at + header
        while record + _RECORD.size <= at + length:
            kind, _, size = _RECORD.unpack_from(data, record)
            if kind == _PIDFD_RECORD:
                (pidfd,) = struct.unpack_from("=i", data, record + _RECORD.size)
            record += max(size, _RECORD.size)
        yield FileEvent(mask, fd, pid, pidfd)
        at += length


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
