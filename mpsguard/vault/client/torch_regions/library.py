"""The pool allocator's C library (pool.c)."""

import ctypes
import functools
from pathlib import Path
from typing import Final

NAME: Final = "libmpsguard_pool.so"

UNIT: Final = 2 << 20
"""Bytes; memory is allocated in multiples of it. Same value as in pool.c."""


class PoolNotBuiltError(Exception):
    """The library is missing: the package was built without a C compiler."""


def path() -> Path:
    """Return the path of the built library; raise PoolNotBuiltError if it is missing."""
    found = Path(__file__).resolve().with_name(NAME)
    if not found.is_file():
        raise PoolNotBuiltError(f"{found} is not there: install mpsguard again on a machine with gcc")
    return found


@functools.cache
def load(file: Path) -> ctypes.CDLL:
    """Return the library with its functions' types set; the same object for the same file."""
    library = ctypes.CDLL(str(file))
    library.mpsguard_pool_open.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p)
    library.mpsguard_pool_used.argtypes = (ctypes.c_int,)
    library.mpsguard_pool_used.restype = ctypes.c_uint64
    library.mpsguard_pool_close.argtypes = (ctypes.c_int,)
    library.mpsguard_pool_enter.argtypes = (ctypes.c_int,)
    library.mpsguard_pool_allocate.argtypes = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    library.mpsguard_pool_allocate.restype = ctypes.c_void_p
    library.mpsguard_pool_free.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    library.mpsguard_pool_free.restype = None
    return library
