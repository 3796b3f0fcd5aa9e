"""Zones on CUDA's own descriptor of the UVM device: managed ranges by mmap(2), sparse ones by ioctl(2).

The conditions for a managed range are documented in mpsguard/preload/uvm_zone.h, which does the same in C. Sparse
ranges are UVM's external ranges (open-gpu-kernel-modules, uvm_ioctl.h and uvm_map_external.c).
"""

import ctypes
import errno
import fcntl
import mmap
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

from mpsguard.preload.zones.errors import UvmError

DEVICE: Final = "/dev/nvidia-uvm"
"""As /proc/self/fd shows it."""

UVM_FREE: Final = 34
UVM_CREATE_EXTERNAL_RANGE: Final = 73
UVM_MAP_EXTERNAL_SPARSE: Final = 74
RANGE: Final = struct.Struct("<QQIxxxx")
"""base, length, status: the argument of the first two ioctls."""
SPARSE: Final = struct.Struct("<QQ16sIxxxx")
"""base, length, UUID of the GPU, status."""
_OK: Final = 0

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FAILED: Final = ctypes.c_void_p(-1).value
_NONE: Final = 0
_FIXED: Final = 0x10
_FIXED_NOREPLACE: Final = 0x100000
_NORESERVE: Final = 0x4000
"""PROT_NONE, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE (mmap(2)): the module mmap has none of them everywhere."""

Ioctl = Callable[[int, int, bytearray], int]


class Before(Enum):
    """State of a zone's addresses before it was armed."""

    UNMAPPED = "unmapped"
    MAPPED = "mapped"


class Uvm:
    """Creates and removes zones. The descriptors are CUDA's: looked up at every use, and never copied or closed.

    All methods raise UvmError, and have changed nothing then.
    """

    def __init__(self, device: str = DEVICE, *, ioctl: Ioctl = fcntl.ioctl) -> None:
        self._device = device
        self._ioctl = ioctl

    def arm(self, start: int, length: int) -> Before:
        """Make addresses that the caller has reserved with CUDA a managed range."""
        first, last = _is_mapped(start), _is_mapped(start + length - mmap.PAGESIZE)
        if first != last:
            raise UvmError(f"{length} bytes at {start:#x} are partly mapped by something else")
        how = _FIXED if first else _FIXED_NOREPLACE
        for fd in self._descriptors():
            if not _takes_mappings(fd):
                continue
            if _map_managed(fd, start, length, how) == start:
                return Before.MAPPED if first else Before.UNMAPPED
            # The kernel may have removed the old mapping before it asked the driver.
            if first:
                _map_nothing(start, length, _FIXED_NOREPLACE)
        raise UvmError(f"no descriptor of {self._device} in this process takes a managed range of {length} bytes")

    @staticmethod
    def disarm(start: int, length: int, before: Before) -> None:
        """Remove a managed range and leave the addresses as they were."""
        if before is Before.UNMAPPED or _map_nothing(start, length, _FIXED) != start:
            _libc.munmap(start, length)

    def make_sparse(self, start: int, length: int, gpu: bytes) -> None:
        """Make reserved addresses a sparse range on the GPU with that UUID (16 bytes)."""
        statuses = []
        for fd in self._descriptors():
            if (status := self._ask(fd, UVM_CREATE_EXTERNAL_RANGE, RANGE, start, length, _OK)) == _OK:
                if (status := self._ask(fd, UVM_MAP_EXTERNAL_SPARSE, SPARSE, start, length, gpu, _OK)) == _OK:
                    return
                self._ask(fd, UVM_FREE, RANGE, start, length, _OK)
            statuses.append(f"{status:#x}")
        raise UvmError(
            f"{self._device} makes no sparse range of {length} bytes: {', '.join(statuses) or 'it is not open'}"
        )

    def end_sparse(self, start: int, length: int) -> None:
        """Remove a sparse range."""
        statuses = [self._ask(fd, UVM_FREE, RANGE, start, length, _OK) for fd in self._descriptors()]
        if _OK not in statuses:
            raise UvmError(f"{self._device} does not free the sparse range at {start:#x}: {statuses}")

    def _descriptors(self) -> Iterator[int]:
        for entry in sorted(Path("/proc/self/fd").iterdir(), key=lambda entry: int(entry.name)):
            with suppress(OSError):
                if str(entry.readlink()) == self._device:
                    yield int(entry.name)

    def _ask(self, fd: int, number: int, form: struct.Struct, *values: int | bytes) -> int:
        """Return UVM's status, the last of the values; for a failed call, the negative error number."""
        words = bytearray(form.pack(*values))
        try:
            self._ioctl(fd, number, words)
        except OSError as error:
            return -(error.errno or errno.EIO)
        return int(form.unpack(words)[-1])


def _map_managed(fd: int, start: int, length: int, how: int) -> int | None:
    # UVM takes a mapping only at the offset that equals its address.
    found: int | None = _libc.mmap(start, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | how, fd, start)
    return found


def _map_nothing(start: int, length: int, how: int) -> int | None:
    found: int | None = _libc.mmap(
        start, length, _NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE | how, -1, 0
    )
    return found


def _takes_mappings(fd: int) -> bool:
    # Tried on a separate page instead of a zone, because a failed mapping leaves a hole.
    own = _map_nothing(0, mmap.PAGESIZE, 0)
    if own is None or own == _FAILED:
        return False
    if _map_managed(fd, own, mmap.PAGESIZE, _FIXED) != own:
        # If the kernel has removed the page, its address may be another thread's now: leave it alone.
        return False
    _libc.munmap(own, mmap.PAGESIZE)
    return True


def _is_mapped(address: int) -> bool:
    resident = ctypes.create_string_buffer(1)
    return _libc.mincore(address, 1, resident) == 0 or ctypes.get_errno() != errno.ENOMEM
