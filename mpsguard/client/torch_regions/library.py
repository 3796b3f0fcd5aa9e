"""The allocator's functions, as Python calls them."""

import ctypes
import functools
from pathlib import Path
from typing import Final

NAME: Final = "libmpsguard_pool.so"

UNIT: Final = 2 << 20
"""Bytes; memory is given out in multiples of it. As in pool.c."""


class NotBuiltError(Exception):
    """The library is not there: it was built without a C compiler, or not at all."""


def path() -> Path:
    """The built library; `NotBuiltError` if there is none."""
    found = Path(__file__).resolve().with_name(NAME)
    if not found.is_file():
        raise NotBuiltError(f"{found} is not there: install mpsguard again on a machine with gcc")
    return found


@functools.cache
def load(file: Path) -> ctypes.CDLL:
    """The library with its functions' types; the same one for the same file, as PyTorch gets it too."""
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
