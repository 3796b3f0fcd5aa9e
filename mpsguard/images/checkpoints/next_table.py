"""The table of pieces of the next checkpoint, made ahead of its cut: the program stands still during a cut."""

import os
from contextlib import suppress

from mpsguard.images.checkpoints.piece_table import PieceTable, PieceTableError


class NextTable:
    """Owns a table that no checkpoint has yet, if there is one."""

    def __init__(self) -> None:
        self._made: tuple[PieceTable, int] | None = None
        self._for = (0, 0)

    def prepare(self, pieces: int, serial: int) -> None:
        """Make a table for the checkpoint with that serial number; a failure shows at its cut."""
        self.close()
        with suppress(PieceTableError, OSError):
            self._made = PieceTable.create(pieces, serial)
            self._for = (pieces, serial)

    def take(self, pieces: int, serial: int) -> tuple[PieceTable, int]:
        """Return an empty table and its descriptor, which the caller owns: the one at hand, or else a new one.

        Raises:
            PieceTableError: no checkpoint has so many pieces.
            OSError: as `PieceTable.create`.
        """
        if self._made is None or self._for != (pieces, serial):
            return PieceTable.create(pieces, serial)
        made, self._made = self._made, None
        return made

    def close(self) -> None:
        """Give the table back; safe to call twice."""
        made, self._made = self._made, None
        if made is not None:
            table, fd = made
            table.close()
            os.close(fd)
