"""One piece of shared host memory for many images, so that a program has it pinned once and not with each image."""

import fcntl
import mmap
import os
import threading
from contextlib import suppress
from typing import Final

from mpsguard.images.pool import arena_slots
from mpsguard.images.pool.arena_slots import Run
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.linux import memory_room
from mpsguard.linux.descriptors import memfd
from mpsguard.linux.huge_pages import AlignedMapping

_F_SEAL_FUTURE_WRITE: Final = 0x10
"""Of <linux/fcntl.h> (Linux 5.1): only mappings that are there already can be written to."""
_TAKING_UP: Final = 60.0
"""Seconds."""
_SPARED: Final = 64 << 20
"""Bytes that are left to others."""
MOST_RUNS: Final = 3000
"""Of an image: they have to fit into one message."""


class Arena:
    """Owns the memory, which only this object's own mapping can write to; programs map it read-only."""

    def __init__(self, size: int) -> None:
        """``size``: bytes, rounded down to whole pieces. Raise PoolError if that is none, or there is no memory."""
        self.size = size // PIECE_SIZE * PIECE_SIZE
        if not self.size:
            raise PoolError(f"pinned memory: {PIECE_SIZE >> 20}M is the least")
        self._free: tuple[Run, ...] = (Run(0, self.size // PIECE_SIZE),)
        try:
            self._fd = memfd.create("mpsguard-arena", self.size, fixed=False)
        except OSError as error:
            raise PoolError(f"pinned memory: {error.strerror}") from None
        try:
            self._mapping = AlignedMapping(self._fd, self.size, writable=True)
            with suppress(OSError):  # a kernel without them
                # Where the administrator allows it, what is loaded before `make_huge` is in such pages already.
                self._mapping.advise(mmap.MADV_HUGEPAGE)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals | _F_SEAL_FUTURE_WRITE)
        except OSError as error:
            os.close(self._fd)
            raise PoolError(f"pinned memory: {error.strerror}") from None

    def descriptor(self) -> int:
        """Return a descriptor for a program, owned by the caller; raise OSError."""
        return memfd.read_only(self._fd)

    def make_huge(self, stop: threading.Event) -> None:
        """Take up the memory in pages of 2 MiB, if possible: it is pinned sooner then. ``stop`` ends that early.

        Where there may be no room for all of it, it is taken up as images come.
        """
        room = memory_room.room()
        if room is None or room < self.size + _SPARED:
            return
        self._mapping.make_huge(self._fd, stop, within=_TAKING_UP)

    def take(self, size: int) -> tuple[Run, ...]:
        """Return slots for so many bytes; there is room for them. Raise PoolError if they are too many runs."""
        taken, free = arena_slots.take(self._free, size // PIECE_SIZE)
        if len(taken) > MOST_RUNS:
            raise PoolError(f"tier pinned: what is free lies in {len(taken)} places; {MOST_RUNS} is the most")
        self._free = free
        return taken

    def give(self, runs: tuple[Run, ...]) -> None:
        """Take slots back."""
        self._free = arena_slots.give(self._free, runs)

    def places(self, runs: tuple[Run, ...]) -> list[memoryview]:
        """Return the memory of each slot, for the image's pieces in their order."""
        view = self._mapping.view()
        return [
            view[slot * PIECE_SIZE : (slot + 1) * PIECE_SIZE]
            for run in runs
            for slot in range(run.first, run.first + run.count)
        ]

    def close(self) -> None:
        """Let go of the memory, which stays as long as a program maps it, or a view of it is alive here."""
        os.close(self._fd)
        del self._mapping
