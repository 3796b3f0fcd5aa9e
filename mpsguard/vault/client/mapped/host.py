"""Host memory, as memfds mapped at fixed addresses: for state in host memory, and for machines without a GPU."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

from mpsguard.linux import memory_mapping
from mpsguard.linux.descriptors import memfd
from mpsguard.linux.memory_mapping import PROT_NONE, map_memory
from mpsguard.vault.client.mapped.backend import Held

_NO_MEMORY: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | memory_mapping.MAP_NORESERVE
"""Of addresses that are reserved, without access before `HostBackend.allow`."""


class HostBackend:
    """Host memory as a `mpsguard.vault.client.mapped.backend.Backend`; handles are descriptors.

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
        if va:
            with suppress(FileExistsError):
                return map_memory(va, size, PROT_NONE, _NO_MEMORY | memory_mapping.MAP_FIXED_NOREPLACE)
        return map_memory(0, size, PROT_NONE, _NO_MEMORY)

    def unreserve(self, va: int, size: int) -> None:
        """Unmap the pages."""
        memory_mapping.unmap(va, size)

    def map(self, va: int, size: int, handle: int) -> None:
        """Map the memfd without access rights, over addresses from `reserve`."""
        map_memory(va, size, PROT_NONE, mmap.MAP_SHARED | memory_mapping.MAP_FIXED, handle)

    def map_all(self, va: int, chunks: Iterable[tuple[int, int]], held: Held) -> None:
        """Map each chunk; the kernel needs no handles for that."""
        for fd, size in chunks:
            self.map(va + held.mapped, size, fd)
            held.mapped += size

    def unmap(self, va: int, size: int) -> None:
        """Replace the mapping by inaccessible pages."""
        map_memory(va, size, PROT_NONE, _NO_MEMORY | memory_mapping.MAP_FIXED)

    def allow(self, va: int, size: int, *, writable: bool) -> None:
        """Change the pages' protection."""
        memory_mapping.protect(va, size, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))

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
