"""The pool's pinned tier as a program maps it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from mpsguard.images.pool.arena_slots import Run
from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.linux.closing import Closing
from mpsguard.linux.huge_pages import AlignedMapping
from mpsguard.vault.client.mapped.backend import CopyingBackend


class PinnedPieces(NamedTuple):
    """Consecutive pieces of an image in host memory."""

    first: int
    """Index of the first one among all pieces of the image."""
    pieces: int
    """How many there are."""
    address: int


class PinnedArena(Closing):
    """Owns the mapping of the arena, pinned once for all images that come and go in it."""

    def __init__(self, pool: PoolConnection, backend: CopyingBackend) -> None:
        """Map it and pin it.

        Args:
            pool: stays owned by the caller, and is needed in this call only.
            backend: of the GPU that is to copy from it.

        Raises:
            PoolError: the pool has none.
            OSError: it cannot be mapped.
            Exception: the backend's error.
        """
        fd, self.size = pool.open_arena()
        with ExitStack() as undo:
            try:
                mapping = AlignedMapping(fd, self.size, writable=False)
            finally:
                os.close(fd)
            undo.callback(mapping.close)
            # The driver has the address as pinned until `close`: nothing else may come there.
            mapping.keep()
            self.address: int = mapping.address
            self.pinned = backend.pin(self.address, self.size)
            """Whether it is pinned. Otherwise copies from it are slower, but no less right."""
            if self.pinned:
                undo.callback(backend.unpin, self.address)
            self._undo = undo.pop_all()

    def sources(self, runs: Sequence[Run]) -> Iterator[PinnedPieces]:
        """Yield where the pieces of an image are that has these slots; valid as long as the image is held."""
        first = 0
        for run in runs:
            yield PinnedPieces(first, run.count, self.address + run.first * PIECE_SIZE)
            first += run.count

    def close(self) -> None:
        """Unpin and unmap it; safe to call twice."""
        self._undo.close()
