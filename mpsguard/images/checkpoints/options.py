"""How the checkpoints of a session are made."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CheckpointOptions:
    """How checkpoints are made. Sizes in bytes."""

    store: Path
    """Directory of the image store."""
    quota: int | None = None
    """Of the store; None: no limit."""
    spare: int = 0
    """Memory of the same kind as the regions, to which pieces are set aside that are about to be written; the writer
    waits for the bus only where it is full."""
    buffers: int = 1 << 30
    """Host memory of the copier, pinned for a GPU's regions, in which pieces wait for the disk."""
    patience: float = 1.0
    """Seconds that the announcements of one checkpoint may hold the program, all together; then it is given up."""
    deadline: float = 600.0
    """Seconds from the cut to the commit; then the checkpoint is given up."""
    retries: int = 2
    """How often a checkpoint that was torn is taken again, at later publications."""
