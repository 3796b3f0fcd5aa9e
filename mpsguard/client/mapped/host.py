"""Host memory, as memfds mapped at fixed addresses: for state in host memory, and for machines without a GPU."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from mpsguard.client.mapped.backend import Held
from mpsguard.linux.descriptors import memfd

_FIXED, _NORESERVE, _FIXED_NOREPLACE = 0x10, 0x4000, 0x100000
"""MAP_FIXED, MAP_NORESERVE and MAP_FIXED_NOREPLACE (Linux 4.17) of <asm-generic/mman.h>."""
_FAILED: Final = ctypes.c_void_p(-1).value

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class HostBackend:
    """Host memory as a `mpsguard.client.mapped.backend.Backend`; handles are descriptors.

    Every method raises OSError if the kernel refuses.
    """

    def __init__(self) -> None:
        self.gpu: str | None = None
        self.device = "cpu"
        self.granularity = mmap.PAGESIZE

    def entered(self) -> AbstractContextManager[None]:
        """Return an empty context."""
        return nullcontext()

    def make(self, size: int) -> int:
        """Create a memfd of fixed size."""
        return memfd.create("mpsguard-region", size, fixed=True)

    def export(self, handle: int) -> int:
        """Duplicate the descriptor."""
        return os.dup(handle)

    def drop(self, handle: int) -> None:
        """Close the descriptor."""
        os.close(handle)

    def reserve(self, va: int, size: int) -> int:
        """Map inaccessible pages, at ``va`` or else where the kernel chooses; 0 is no address."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        if not va:
            return _map(0, size, flags, -1)
        try:
            return _map(va, size, flags | _FIXED_NOREPLACE, -1)
        except FileExistsError:
            return _map(0, size, flags, -1)

    def unreserve(self, va: int, size: int) -> None:
        """Unmap the pages."""
        _check(_libc.munmap(va, size))

    def map(self, va: int, size: int, handle: int) -> None:
        """Map the memfd without access rights, over addresses from `reserve`."""
        _map(va, size, mmap.MAP_SHARED | _FIXED, handle)

    def map_all(self, va: int, chunks: Iterable[tuple[int, int]], held: Held) -> None:
        """Map each chunk; the kernel needs no handles for that."""
        for fd, size in chunks:
            self.map(va + held.mapped, size, fd)
            held.mapped += size

    def unmap(self, va: int, size: int) -> None:
        """Replace the mapping by inaccessible pages."""
        _map(va, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE | _FIXED, -1)

    def allow(self, va: int, size: int, *, writable: bool) -> None:
        """Change the pages' protection."""
        _check(_libc.mprotect(va, size, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)))

    def read(self, va: int, size: int) -> bytes:
        """Copy from the addresses."""
        return ctypes.string_at(va, size)

    def write(self, va: int, data: bytes) -> None:
        """Copy to the addresses."""
        ctypes.memmove(va, data, len(data))

    def pin(self, address: int, size: int) -> bool:  # noqa: ARG002 - the interface
        """Do nothing: the processor copies from any memory."""
        return True

    def unpin(self, address: int) -> None:
        """Do nothing."""

    def begin_copy(self, va: int, address: int, size: int) -> None:
        """Copy at once."""
        ctypes.memmove(va, address, size)

    def settle(self) -> None:
        """Do nothing."""


def _map(va: int, size: int, flags: int, fd: int) -> int:
    # No access before `allow`: PROT_NONE is 0, and the mmap module has no name for it.
    at = _libc.mmap(va, size, 0, flags, fd, 0)
    if at == _FAILED:
        _check(-1)
    return int(at)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
