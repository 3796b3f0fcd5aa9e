"""Shared memory that is mapped where pages of 2 MiB can be, and made of such pages."""

import ctypes
import errno
import mmap
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from mpsguard.linux.memory_mapping import MAP_FIXED, MAP_NORESERVE, PROT_NONE, advise, map_memory, unmap

HUGE_PAGE: Final = 2 << 20
_COLLAPSE: Final = 25
"""MADV_COLLAPSE (Linux 6.1)."""
_RUN: Final = 16 * HUGE_PAGE
"""Bytes that a thread has collapsed before it looks whether it shall stop."""
_THREADS: Final = min(8, len(os.sched_getaffinity(0)))


class AlignedMapping:
    """Owns a shared mapping of a file at a multiple of 2 MiB.

    The kernel maps a page of 2 MiB as one only where address and offset are multiples of that. It is unmapped by
    `close`, or when neither this object nor a view of it is left, unless `keep` was called.
    """

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        """Map ``size`` bytes from the file's start on; ``fd`` stays owned by the caller. Raise OSError."""
        self.size = size
        room = map_memory(0, size + HUGE_PAGE, PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        self.address: Final = -(-room // HUGE_PAGE) * HUGE_PAGE
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            map_memory(self.address, size, protection, mmap.MAP_SHARED | MAP_FIXED, fd)
        except OSError:
            unmap(room, size + HUGE_PAGE)
            raise
        end = self.address + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.address > room:
            unmap(room, self.address - room)
        if (rest := room + size + HUGE_PAGE - end) > 0:
            unmap(end, rest)
        self._bytes = (ctypes.c_char * size).from_address(self.address)
        self._unmap = weakref.finalize(self._bytes, unmap, self.address, size)
        # A thread may be at work on it until the process ends.
        self._unmap.atexit = False
        self._kept = False

    def view(self) -> memoryview:
        """Return the bytes; to be written only if the mapping is writable."""
        return memoryview(self._bytes).cast("B")

    def advise(self, advice: int) -> None:
        """Call madvise(2) for all of it; raise OSError."""
        advise(self.address, self.size, advice)

    def make_huge(self, fd: int, stop: threading.Event, *, within: float) -> int:
        """Have the memory taken up as a whole, in pages of 2 MiB as far as the kernel has them (MADV_COLLAPSE).

        That needs no setting of the administrator (/sys/kernel/mm/transparent_hugepage/shmem_enabled), and keeps the
        content. To be done before the memory is pinned: then its pages stay what they are. There must be room for all
        of it (`mpsguard.linux.memory_room`): what goes beyond a control group's limit is a process killed.

        Args:
            fd: of the file, writable; stays owned by the caller.
            stop: ends it early.
            within: seconds, after which the rest stays as it is.

        Returns:
            Bytes that are in such pages now; 0 on a kernel that cannot do it.
        """
        due, useless = time.monotonic() + within, threading.Event()
        # A thread may be in the kernel for longer than the caller waits.
        own = os.dup(fd)

        def collapse(offset: int) -> int:
            size = min(_RUN, self.size - offset) // HUGE_PAGE * HUGE_PAGE
            if not size or stop.is_set() or useless.is_set() or time.monotonic() > due:
                return 0
            try:
                for page in range(offset, offset + size, HUGE_PAGE):
                    # The kernel refuses where there is no page at all. An access would be SIGBUS where it has none.
                    if stop.is_set():
                        return 0
                    os.posix_fallocate(own, page, mmap.PAGESIZE)
                advise(self.address + offset, size, _COLLAPSE)
            except OSError as error:
                # Of EAGAIN other pages may be free; all others say that there is no memory, or no such call.
                if error.errno != errno.EAGAIN:
                    useless.set()
                return 0
            return size

        try:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="huge-pages") as threads:
                return sum(threads.map(collapse, range(0, self.size, _RUN)))
        finally:
            os.close(own)

    def keep(self) -> None:
        """Leave it mapped when this object is gone: what knows the address alone uses it until `close`."""
        self._unmap.detach()
        self._kept = True

    def close(self) -> None:
        """Unmap it; no view is used any more. Safe to call twice."""
        self._unmap()
        if self._kept:
            self._kept = False
            unmap(self.address, self.size)
