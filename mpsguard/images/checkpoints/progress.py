"""How far a checkpoint is, as the copier tells in the table of pieces."""

from enum import IntEnum
from typing import Final, NamedTuple


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
