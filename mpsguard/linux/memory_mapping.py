"""mmap(2) and its kin at chosen addresses, for which the module mmap has no calls. Each raises OSError."""

import ctypes
import os
from typing import Final

PROT_NONE: Final = 0
"""No access: the module mmap has no name for it."""
MAP_FIXED: Final = 0x10
MAP_NORESERVE: Final = 0x4000
MAP_FIXED_NOREPLACE: Final = 0x100000
"""Linux 4.17; these are of <asm-generic/mman.h>."""
_FAILED: Final = ctypes.c_void_p(-1).value

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_memory(address: int, size: int, protection: int, flags: int, fd: int = -1) -> int:
    """Call mmap(2) with the start of a file, and return where it is; ``address`` 0: where the kernel chooses."""
    at = _libc.mmap(address, size, protection, flags, fd, 0)
    if at == _FAILED:
        _check(-1)
    return int(at)


def unmap(address: int, size: int) -> None:
    """Call munmap(2)."""
    _check(_libc.munmap(address, size))


def protect(address: int, size: int, protection: int) -> None:
    """Call mprotect(2)."""
    _check(_libc.mprotect(address, size, protection))


def advise(address: int, size: int, advice: int) -> None:
    """Call madvise(2)."""
    _check(_libc.madvise(address, size, advice))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
