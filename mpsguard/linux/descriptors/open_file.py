"""What an open descriptor is, told without asking its file system: it may be a stranger's, and never answer."""

import ctypes
import errno
import functools
import itertools
import os
import platform
import stat
import struct
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

_libc: Final = ctypes.CDLL(None, use_errno=True)

_AT_EMPTY_PATH: Final = 0x1000
_AT_STATX_DONT_SYNC: Final = 0x4000
_STATX_BASIC: Final = 0x7FF
_STATX_BYTES: Final = 256
_STATX: Final = struct.Struct("=IIQIIIHHQQ80xIIII")
"""``struct statx`` (statx(2)): mask, blksize, attributes, nlink, uid, gid, mode, spare, ino, size, blocks and times
skipped, rdev major and minor, dev major and minor."""

_NVIDIA_MAJOR: Final = 195
_NVIDIACTL_MINOR: Final = 255
"""/dev/nvidiactl, fixed in the driver: what an exported memory handle is a descriptor of."""

_SYS_KCMP: Final = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE: Final = 0


class MemoryKind(Enum):
    """What kind of memory a descriptor stands for."""

    HOST = "memfd"
    GPU = "nvidiactl"
    """An exported memory handle, or another descriptor of that device: from outside they cannot be told apart."""
    OTHER = "other"


class OpenFile(NamedTuple):
    """What the kernel itself knows of a descriptor."""

    kind: MemoryKind
    inode: int
    size: int
    """Bytes; of meaning for `MemoryKind.HOST` only."""


def describe(fd: int) -> OpenFile:
    """Look at a descriptor; never waits for another process. OSError if it is none."""
    mode, inode, size, rdev, dev = _statx(fd)
    if stat.S_ISREG(mode) and dev == _memfd_device():
        return OpenFile(MemoryKind.HOST, inode, size)
    if stat.S_ISCHR(mode) and rdev == (_NVIDIA_MAJOR, _NVIDIACTL_MINOR):
        return OpenFile(MemoryKind.GPU, inode, 0)
    return OpenFile(MemoryKind.OTHER, inode, 0)


def distinct(fds: Sequence[int]) -> bool:
    """Whether no two descriptors are of one open file (kcmp(2)); True where the kernel cannot say."""
    number = _SYS_KCMP.get(platform.machine())
    if number is None:
        return True
    own = os.getpid()

    def order(one: int, other: int) -> int:
        # 0 the same, 1 below, 2 above, in an order that is the kernel's own.
        answer = _libc.syscall(number, own, own, _KCMP_FILE, one, other)
        if answer < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return (0, -1, 1)[answer]

    try:
        ordered = sorted(fds, key=functools.cmp_to_key(order))
        return all(order(one, other) != 0 for one, other in itertools.pairwise(ordered))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return True
        raise


@functools.cache
def _memfd_device() -> tuple[int, int]:
    """The kernel's own mount, on which every memfd lies and which no user can mount."""
    fd = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return _statx(fd)[4]
    finally:
        os.close(fd)


def _statx(fd: int) -> tuple[int, int, int, tuple[int, int], tuple[int, int]]:
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if _libc.statx(fd, b"", _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC, _STATX_BASIC, answer) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    fields = _STATX.unpack_from(answer)
    mode, inode, size = fields[6], fields[8], fields[9]
    return mode, inode, size, (fields[10], fields[11]), (fields[12], fields[13])
