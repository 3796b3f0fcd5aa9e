"""Spare memory, to which the writer sets pieces aside instead of waiting for the copier."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mpsguard.images.checkpoints.errors import CheckpointError
from mpsguard.images.checkpoints.pieces import PIECE
from mpsguard.images.checkpoints.sources import RegionSource, Spare
from mpsguard.vault.client.session_memory import MappedMemory
from mpsguard.vault.wire.region import RegionRecord

if TYPE_CHECKING:
    from mpsguard.images.checkpoints.cuda_pieces import CudaPieces


class SpareSlots:
    """Slots of one piece each: free, or holding a piece that the copier has not yet read."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._held: dict[int, int] = {}
        """Slot by piece."""

    def take(self, numbers: list[int], is_copied: Callable[[int], bool]) -> list[tuple[int, int]]:
        """Give slots to as many of the pieces as there are free ones; return (piece, slot) in the pieces' order.

        A slot is free again when the copier has read the piece in it.
        """
        if len(self._free) < len(numbers):
            for number in [each for each in self._held if is_copied(each)]:
                self._free.append(self._held.pop(number))
            # Ascending from the end, so that neighbours go to neighbouring slots and are copied in one go.
            self._free.sort(reverse=True)
        count = min(len(numbers), len(self._free))
        kept = len(self._free) - count
        given = list(zip(numbers[:count], reversed(self._free[kept:]), strict=True))
        del self._free[kept:]
        self._held.update(given)
        return given

    def empty(self) -> None:
        """Take all slots back: the checkpoint has ended."""
        self._free = sorted([*self._free, *self._held.values()], reverse=True)
        self._held = {}


def copies(given: list[tuple[int, int]], most: int) -> list[tuple[range, range]]:
    """Return the copies that bring pieces to their slots: consecutive pieces to consecutive slots, at most ``most``."""
    found: list[tuple[range, range]] = []
    for number, slot in given:
        if found:
            pieces, slots = found[-1]
            if number == pieces.stop and slot == slots.stop and len(pieces) < most:
                found[-1] = range(pieces.start, number + 1), range(slots.start, slot + 1)
                continue
        found.append((range(number, number + 1), range(slot, slot + 1)))
    return found


class SpareSpace:
    """Owns the spare memory, once it is known on which GPU the regions lie, and what runs on that GPU."""

    def __init__(self, slots: int) -> None:
        """``slots``: number of pieces; 0: no spare memory."""
        self._wanted = slots
        self._spare: Spare | None = None
        self._cuda: dict[str, CudaPieces] = {}
        self.slots = SpareSlots(0)

    def cuda_source(self, memory: MappedMemory) -> RegionSource:
        """Return the source of a mapped region of GPU memory; raise CudaError."""
        # Needs cuda-bindings, which an application without a GPU need not have.
        from mpsguard.images.checkpoints.cuda_pieces import CudaPieces, CudaSource  # noqa: PLC0415

        backend = memory.backend
        pieces = self._cuda.get(backend.gpu)
        if pieces is None:
            pieces = self._cuda[backend.gpu] = CudaPieces(backend)
        return CudaSource(pieces, memory.va, memory.size)

    def prepare(
        self, records: Sequence[RegionRecord], source: Callable[[RegionRecord], RegionSource]
    ) -> tuple[int, str | None]:
        """Allocate the spare memory where the first region on a GPU lies (without one: host memory).

        Returns:
            Its size in bytes, 0 without any, and the GPU.

        Raises:
            CheckpointError: there is no room for it.
        """
        if self._spare is None and self._wanted and records:
            on_gpu = next((record for record in records if record.layout.gpu is not None), records[0])
            try:
                self._spare = source(on_gpu).new_spare(self._wanted)
            except Exception as error:
                raise CheckpointError(f"no room for {self._wanted * PIECE} bytes of spare memory: {error}") from error
            self.slots = SpareSlots(self._wanted)
        return (0, None) if self._spare is None else (self._wanted * PIECE, self._spare.gpu)

    @property
    def fd(self) -> int | None:
        """Descriptor of the spare memory; stays owned by this object."""
        return None if self._spare is None else self._spare.fd

    def copy_from(self, source: RegionSource, first: int) -> Callable[[range, range], None] | None:
        """Return what copies pieces of a region, the first of which has that number, to slots; None if nothing can."""
        spare = self._spare
        if spare is None or spare.gpu != source.gpu:
            return None
        return lambda pieces, slots: source.set_aside(pieces.start - first, slots, spare)

    def close(self) -> None:
        """Give host memory back. A GPU's stays until the process ends: the copier may be reading it."""
        if self._spare is not None and self._spare.gpu is None:
            os.close(self._spare.fd)
        self._spare = None
