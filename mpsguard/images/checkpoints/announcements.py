"""What the writer has announced: which pieces it writes, and what that means while a checkpoint is under way. Pure."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpsguard.images.checkpoints.piece_table import PieceTable
from mpsguard.images.checkpoints.pieces import RegionSpan
from mpsguard.images.checkpoints.spare import SpareSlots, copies


class UnderWay(NamedTuple):
    """The checkpoint that is under way, as far as announcements are concerned."""

    table: PieceTable
    spans: dict[str, RegionSpan]
    """By the region's name."""


class Announcements:
    """Which pieces were announced since the last cut. Not for use by several threads at once."""

    def __init__(self) -> None:
        self._dirty: dict[str, bytearray] = {}
        """A byte for each piece of the regions that were part of the last cut, by name."""

    def announce(self, name: str, pieces: range) -> None:
        """Record that the pieces with these indices in a region are about to be written."""
        flags = self._dirty.get(name)
        if flags is not None:
            flags[pieces.start : pieces.stop] = b"\1" * len(pieces)

    def cut(self, spans: Sequence[RegionSpan]) -> bytes:
        """Return a byte for each piece, 1 if it may have been written since the last cut, and begin anew."""
        found = bytearray()
        for span in spans:
            size = span.end - span.first
            flags = self._dirty.get(span.name)
            found += flags if flags is not None and len(flags) == size else b"\1" * size
        self._dirty = {span.name: bytearray(span.end - span.first) for span in spans}
        return bytes(found)

    def reset(self) -> None:
        """Treat all as written: the last cut came to nothing."""
        self._dirty = {}

    def forget(self, name: str) -> None:
        """Treat all of a region as written: it is another one now."""
        self._dirty.pop(name, None)


def protect(
    under_way: UnderWay,
    numbers: range,
    *,
    slots: SpareSlots,
    copy: Callable[[range, range], None] | None,
    most: int,
    wait: Callable[[list[int]], None],
) -> None:
    """Return when these pieces may be written: their content at the cut is elsewhere.

    What fits into the spare memory is set aside there; the copier is asked for the rest.

    Args:
        under_way: the checkpoint.
        numbers: the pieces.
        slots: of the spare memory.
        copy: copies consecutive pieces to consecutive slots, finished on return; None: they cannot be set aside.
        most: largest number of pieces to copy at a time.
        wait: waits until the copier has copied these pieces.
    """
    table = under_way.table
    pending = table.open_pieces(numbers)
    if not pending:
        return
    if copy is not None:
        given = slots.take(pending, table.is_copied)
        for pieces, places in copies(given, most):
            copy(pieces, places)
            table.set_aside(pieces, places)
        pending = pending[len(given) :]
    if pending:
        table.want(pending)
        wait(pending)
