"""Descriptors of other processes: copy those of one device (pidfd_getfd(2)), open those of memory files anew.

What another process has open may be a trap: a file of its own FUSE file system, on which ``stat`` or ``close`` waits
for that process. So nothing is copied or opened before the kernel says, without asking the file system, that it is the
device, or memory.
"""

import ctypes
import errno
import itertools
import os
import platform
import re
import select
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Self

_libc: Final = ctypes.CDLL(None, use_errno=True)
_SYS_PIDFD_GETFD: Final = 438
"""Linux 5.6; the same number on every architecture."""
_SYS_KCMP: Final = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE: Final = 0

_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_AT_STATX_DONT_SYNC: Final = 0x4000
_STATX_TYPE: Final = 0x1
_STATX_BYTES: Final = 256
_STATX_MODE: Final = struct.Struct("=H")
_STATX_MODE_AT: Final = 28
_STATX_RDEV: Final = struct.Struct("=II")
_STATX_RDEV_AT: Final = 128
_STATX_DEV: Final = struct.Struct("=II")
_STATX_DEV_AT: Final = 136
"""``struct statx`` (statx(2)): stx_mode, then stx_rdev_major and _minor, then stx_dev_major and _minor."""

MAX_LOOKED_AT: Final = 4096
"""Descriptors of one process that are looked at at once: about 50 ms. A process may have a million, to keep us busy."""

MAX_COPIES: Final = 32
"""Copies made of one process's descriptors; CUDA has two of nvidia-uvm."""

_FIRST_ENTRY: Final = 2
"""Where descriptor 0 stands in /proc/PID/fd, after ``.`` and ``..``: an entry's position is its number and two
(proc_readfd_common, fs/proc/fd.c)."""


# fmt: off
_LOCAL: Final = frozenset({
    "bpf", "btrfs", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "erofs", "ext2", "ext3",
    "ext4", "f2fs", "hugetlbfs", "mqueue", "overlay", "proc", "pstore", "ramfs", "securityfs", "squashfs",
    "sysfs", "tmpfs", "tracefs", "vfat", "xfs", "zfs",
})
# fmt: on
"""File systems that wait for no other process when a file of theirs is looked up through /proc/PID/fd. NFS, for
one, asks its server (d_weak_revalidate, fs/namei.c), and there may be none. What has devices is here."""

_MAX_MOUNTS: Final = 1 << 20
"""Bytes of /proc/PID/mountinfo: some 8,000 mounts. A user namespace may have 100,000 (fs.mount-max)."""


_MAX_COMPARED: Final = 1 << 26
"""Characters of paths that are looked for among the mount points in one look: some 50 ms. All of what is looked at may
lie 2,000 directories deep."""


class Copies(NamedTuple):
    """Copies of another process's descriptors; they are close-on-exec and belong to the caller."""

    fds: list[int]
    next_descriptor: int | None
    """Where the next look goes on; None if there is nothing beyond what was looked at."""
    too_many: bool = False
    """The process has more descriptors of the device than were copied."""
    exchanged: int | None = None
    """A copy of another file, which the process put in the place of one of the device meanwhile; the look ended there.
    It may be a trap (see above): close it where waiting does no harm."""


def copies_of_device(pidfd: int, pid: int, device: Path, first: int = 0) -> Copies:
    """Copy the descriptors of the character device at ``device`` that the process holds, from number ``first`` on.

    ``pidfd`` and ``pid`` are the same process; if it has ended, ProcessLookupError. PermissionError without
    CAP_SYS_PTRACE over it; FileNotFoundError if there is no such device.
    """
    wanted = device.stat().st_rdev
    copies: list[int] = []
    try:
        directory = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.lseek(directory, first + _FIRST_ENTRY if first else 0, os.SEEK_SET)
            with os.scandir(directory) as entries:
                names = [entry.name for entry in itertools.islice(entries, MAX_LOOKED_AT + 1)]
            mounts = _Mounts.of(pid)
            for name in names[:MAX_LOOKED_AT]:
                if not _is_device(directory, name, device, wanted, mounts):
                    continue
                if len(copies) == MAX_COPIES:
                    return Copies(copies, None, too_many=True)
                if (fd := _copy(pidfd, int(name))) is None:
                    continue
                # By now the process may have put another file there.
                if _device_number(f"/proc/self/fd/{fd}") != wanted:
                    return Copies(copies, None, exchanged=fd)
                copies.append(fd)
        finally:
            os.close(directory)
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None
    except BaseException:
        for fd in copies:
            os.close(fd)
        raise
    return Copies(copies, int(names[MAX_LOOKED_AT]) if len(names) > MAX_LOOKED_AT else None)


def memory_files(pidfd: int, pid: int, text: str, most: int) -> list[int]:
    """Open the process' memory files (memfd) with links that read ``text`` for reading, ``most`` at most.

    The text proves nothing. So each is first had as a place alone (O_PATH), of which no file system is asked and which
    is closed without a FLUSH, and opened if it is where memory files are. Errors as of `copies_of_device`, but that
    PTRACE_MODE_READ is enough.
    """
    try:
        directory = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None
    found: list[int] = []
    try:
        # The number was this process' own when the directory was opened, if it is alive.
        if _has_ended(pidfd):
            raise ProcessLookupError(f"process {pid} has ended")
        with os.scandir(directory) as entries:
            names = [entry.name for entry in itertools.islice(entries, MAX_LOOKED_AT)]
        for name in names:
            if len(found) == most:
                break
            # FileNotFoundError: closed since the list was read.
            with suppress(FileNotFoundError):
                if os.readlink(name, dir_fd=directory) == text and (fd := _open_memory(directory, name)) is not None:
                    found.append(fd)
    except BaseException:
        for fd in found:
            os.close(fd)
        raise
    finally:
        os.close(directory)
    return found


def same_file(one: int, other: int) -> bool:
    """Whether two descriptors of this process are of one open file (kcmp(2)); OSError where the kernel cannot say."""
    number = _SYS_KCMP.get(platform.machine())
    if number is None:
        raise OSError(f"kcmp is not known for {platform.machine()}")
    return _checked(_libc.syscall(number, os.getpid(), os.getpid(), _KCMP_FILE, one, other)) == 0


@dataclass
class _Mounts:
    """A process' mounts by their points, and whether looking a file up there may wait.

    Which mount a descriptor is on is worked out from its path: /proc/PID/fdinfo has it, but of an epoll that is read
    under a lock that its process can hold for as long as it likes (ep_show_fdinfo, fs/eventpoll.c).
    """

    remote: Mapping[str, bool]
    """Empty if looking up waits on none of them, as on most machines."""
    left: int = field(default_factory=lambda: _MAX_COMPARED)
    """Characters that may still be looked for."""

    @classmethod
    def of(cls, pid: int) -> Self:
        try:
            # What it lists is below the process' root, and a descriptor's path begins at that of its mount namespace.
            root = str(Path(f"/proc/{pid}/root").readlink()).rstrip("/")
            with Path(f"/proc/{pid}/mountinfo").open("rb") as file:
                text = file.read(_MAX_MOUNTS)
        except OSError as error:
            if error.errno == errno.EINVAL:
                # A zombie has left its mounts.
                raise ProcessLookupError(f"process {pid} has ended") from None
            raise
        if len(text) == _MAX_MOUNTS:
            raise OSError(errno.E2BIG, "it has too many mounts")
        remote: dict[str, bool] = {}
        for mounted, _, kind in (line.partition(" - ") for line in os.fsdecode(text).splitlines()):
            # The last one at a point covers those before.
            point = root + _unescaped(mounted.split(" ", 5)[4])
            remote[point.rstrip("/") or "/"] = kind.split(" ", 1)[0] not in _LOCAL
        return cls(remote if any(remote.values()) else {})

    def is_remote(self, text: str) -> bool:
        """Whether a file with that path is on a mount where looking it up may wait; OSError if that takes too long."""
        if not self.remote:
            return False
        while text not in self.remote and text not in ("", "/"):
            self.left -= len(text)
            if self.left < 0:
                raise OSError(errno.E2BIG, "its files lie too deep")
            text = text.rpartition("/")[0] or "/"
        return self.remote.get(text, False)


def _unescaped(point: str) -> str:
    """Return a mount point without the escapes of mountinfo (mangle_path, fs/seq_file.c)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)


def _is_device(directory: int, name: str, device: Path, wanted: int, mounts: _Mounts) -> bool:
    """Whether it is the device, under whatever name: a process may have mounted or made it elsewhere."""
    try:
        text = os.readlink(name, dir_fd=directory)
        if not text.startswith("/"):
            # A socket, a pipe, an anonymous inode: most of what a program with many descriptors has.
            return False
        if text.rpartition("/")[2] != device.name and mounts.is_remote(text):
            return False
        return _device_number(name, directory) == wanted
    except FileNotFoundError:
        # Closed since the list was read.
        return False


def _device_number(path: str, directory: int = _AT_FDCWD) -> int | None:
    """The number of the character device at ``path``, or None if it is none. No file system is waited for."""
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    _checked(_libc.statx(directory, os.fsencode(path), _AT_STATX_DONT_SYNC, _STATX_TYPE, answer))
    if not stat.S_ISCHR(_STATX_MODE.unpack_from(answer, _STATX_MODE_AT)[0]):
        return None
    return os.makedev(*_STATX_RDEV.unpack_from(answer, _STATX_RDEV_AT))


def _open_memory(directory: int, name: str) -> int | None:
    """Open a memory file for reading, or return None if it is none, or leased. No file system is waited for."""
    place = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=directory)
    try:
        answer = ctypes.create_string_buffer(_STATX_BYTES)
        _checked(_libc.statx(place, b"", _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC, _STATX_TYPE, answer))
        if os.makedev(*_STATX_DEV.unpack_from(answer, _STATX_DEV_AT)) != _device_of_memory():
            return None
        # Its owner may have a lease, which an open waits for otherwise (fcntl(2), F_SETLEASE).
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:
        return None
    finally:
        os.close(place)


@cache
def _device_of_memory() -> int:
    """Return the device that all memory files are on; the kernel alone puts files there."""
    fd = os.memfd_create("mpsguard-device", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _copy(pidfd: int, number: int) -> int | None:
    try:
        return _checked(_libc.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0))
    except OSError as error:
        if error.errno == errno.EBADF:
            return None
        raise


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
