"""The table of pieces: memory that the writer and the copier of one checkpoint share.

Layout: a header of 8-byte words of native byte order (magic, version, number of pieces, serial number of the
checkpoint; then, written by the copier, its stage and the number of stored pieces), then one array after the other,
each with an element for each piece:

* ``digests``: 32 bytes, the BLAKE3 digest at the cut; written by the writer before the copier gets the table.
* ``aside``: a 4-byte word, 0 or 1 + the slot of the spare memory to which the writer has copied the piece.
* ``wanted``: a byte, set by the writer that waits for the piece.
* ``copied``: a byte, set by the copier when it no longer needs the region's own memory of the piece.

No element is written by both sides, so nothing needs an atomic exchange:

* The writer writes to a piece only after it saw ``copied`` or has completed a copy and set ``aside``.
* The copier sets ``copied`` only if ``aside`` is still 0 after its own copy has completed. If it is not, the writer may
  have written meanwhile: the copier drops what it has and takes the piece from the spare memory.

A processor that shows another one's stores in another order (ARM), a mistake in the program, or other content in the
table can spoil a copy. None of them can spoil an image: what was copied counts only if its digest is the one at the
cut. The table has a fixed size, so mapping it cannot raise SIGBUS.
"""

import mmap
import os
import struct
from array import array
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum
from typing import Final, NamedTuple, Self

from mpsguard.linux.descriptors import memfd

MOST_PIECES: Final = 1 << 20
"""2 TiB of regions."""
DIGEST: Final = 32
"""Bytes."""
_MAGIC: Final = 0x4D50_5347_5049_4543
_VERSION: Final = 1
_HEADER: Final = struct.Struct("=4Q")
_STAGE_WORD: Final = 4
_STORED_WORD: Final = 5
_PAGE: Final = 4096


class CopierStage(IntEnum):
    """What the copier is doing for a checkpoint."""

    STARTING = 0
    """It has not read the plan yet."""
    OPENING = 1
    """It opens the regions, and the draft in the store."""
    COPYING = 2
    """It copies and stores pieces."""
    CHECKING = 3
    """It asks the vault whether the writer was fenced off."""
    COMMITTING = 4
    """All pieces are written; the file system brings them to disk."""
    ENDING = 5
    """It is about to tell what came of it."""


_WORDS: Final = {
    CopierStage.STARTING: "has not begun",
    CopierStage.OPENING: "opens the regions and the store",
    CopierStage.COPYING: "copies and stores pieces",
    CopierStage.CHECKING: "asks the vault whether the writer is still the writer",
    CopierStage.COMMITTING: "waits for the file system of the store to bring all to disk",
    CopierStage.ENDING: "tells what came of it",
}


class CopierProgress(NamedTuple):
    """A look at the table of a checkpoint."""

    stage: CopierStage
    pieces: int
    copied: int
    """Pieces of which the session's memory is needed no more."""
    stored: int
    """Pieces that the store has."""

    def __str__(self) -> str:
        return f"the copier {_WORDS[self.stage]}; {self.copied} of {self.pieces} pieces copied, {self.stored} stored"


class PieceTableError(Exception):
    """Not a table of pieces, or not that of this checkpoint."""


class PieceTable:
    """Owns the mapping of a table. Each side writes only its own arrays."""

    def __init__(self, memory: mmap.mmap, pieces: int) -> None:
        """Use `create` or `open`."""
        self.pieces = pieces
        self._memory = memory
        self._view = memoryview(memory)
        aside, wanted, copied, end = _offsets(pieces)
        self._words = self._view[:_PAGE].cast("Q")
        self.digests = self._view[_PAGE:aside]
        self._aside = self._view[aside:wanted].cast("I")
        self._wanted = self._view[wanted:copied]
        self._copied = self._view[copied:end]

    @classmethod
    def create(cls, pieces: int, serial: int) -> tuple[Self, int]:
        """Return an empty table and its descriptor, owned by the caller; raise PieceTableError or OSError."""
        if not 0 < pieces <= MOST_PIECES:
            raise PieceTableError(f"{pieces} pieces; a checkpoint has 1 to {MOST_PIECES}")
        size = table_size(pieces)
        fd = memfd.create("mpsguard-pieces", size, fixed=True)
        try:
            os.pwrite(fd, _HEADER.pack(_MAGIC, _VERSION, pieces, serial), 0)
            return cls(mmap.mmap(fd, size, mmap.MAP_SHARED), pieces), fd
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def open(cls, fd: int, pieces: int, serial: int) -> Self:
        """Map the table of a checkpoint; the descriptor stays owned by the caller.

        Raises:
            PieceTableError: it is another one, or none.
        """
        size = table_size(pieces)
        if os.fstat(fd).st_size != size:
            raise PieceTableError(f"{os.fstat(fd).st_size} bytes for a table of {size}")
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) != _HEADER.size or _HEADER.unpack(header) != (_MAGIC, _VERSION, pieces, serial):
            raise PieceTableError(f"not the table of checkpoint {serial} with {pieces} pieces")
        return cls(mmap.mmap(fd, size, mmap.MAP_SHARED), pieces)

    def all_digests(self) -> list[bytes]:
        """Return the digest of each piece at the cut."""
        found = bytes(self.digests)
        return [found[at : at + DIGEST] for at in range(0, self.pieces * DIGEST, DIGEST)]

    # --- the writer's arrays

    def want(self, numbers: Iterable[int]) -> None:
        """Ask the copier for these pieces first."""
        for number in numbers:
            self._wanted[number] = 1

    def set_aside(self, pieces: range, slots: range) -> None:
        """Say that consecutive slots of the spare memory have the content at the cut of consecutive pieces."""
        words = array("I", range(slots.start + 1, slots.stop + 1))
        self._aside[pieces.start : pieces.stop] = memoryview(words)

    def wanted(self) -> bytes:
        """Return a byte for each piece: 1 if the writer waits for it."""
        return bytes(self._wanted)

    def slot(self, number: int) -> int | None:
        """Return the slot that has the piece, or None. The copier must check that there is such a slot."""
        word = self._aside[number]
        return word - 1 if word else None

    # --- the copier's array

    def set_copied(self, numbers: Iterable[int]) -> None:
        """Say that the pieces' own memory may be written."""
        for number in numbers:
            self._copied[number] = 1

    def is_copied(self, number: int) -> bool:
        """Return whether the copier no longer needs the piece's own memory."""
        return self._copied[number] != 0

    def open_pieces(self, numbers: range) -> list[int]:
        """Return those of consecutive pieces that are neither copied nor set aside."""
        copied = bytes(self._copied[numbers.start : numbers.stop])
        if 0 not in copied:
            return []
        return [numbers[i] for i, done in enumerate(copied) if not done and not self._aside[numbers[i]]]

    def enter(self, stage: CopierStage) -> None:
        """Tell what the copier does now."""
        self._words[_STAGE_WORD] = stage

    def set_stored(self, count: int) -> None:
        """Tell how many pieces the store has."""
        self._words[_STORED_WORD] = count

    def progress(self) -> CopierProgress:
        """Return how far the copier says it is."""
        stage = min(self._words[_STAGE_WORD], max(CopierStage))
        return CopierProgress(
            CopierStage(stage), self.pieces, bytes(self._copied).count(1), min(self._words[_STORED_WORD], self.pieces)
        )

    def close(self) -> None:
        """Unmap it; safe to call twice."""
        for view in (self._words, self.digests, self._aside, self._wanted, self._copied, self._view):
            view.release()
        self._memory.close()


def table_size(pieces: int) -> int:
    """Return the bytes of a table."""
    return -(-_offsets(pieces)[3] // _PAGE) * _PAGE


def _offsets(pieces: int) -> tuple[int, int, int, int]:
    aside = _PAGE + pieces * DIGEST
    wanted = aside + pieces * 4
    copied = wanted + pieces
    return aside, wanted, copied, copied + pieces


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
