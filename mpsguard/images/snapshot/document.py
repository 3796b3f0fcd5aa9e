"""What `allocations.json` in a snapshot says."""

from enum import StrEnum
from typing import Final

import msgspec

NAME: Final = "allocations.json"
FORMAT: Final = 1
NOTE: Final = (
    "Copied while the program ran: each allocation at another moment, and none of them at a single one. "
    "It is a consistent cut only if nothing wrote to GPU memory meanwhile."
)


class AllocationKind(StrEnum):
    """How the program came by an allocation."""

    LARGE = "allocation"
    ORDERED = "stream-ordered allocation"
    SLAB = "small allocations"
    """Several of at most 1 MiB share it; which bytes belong to which is not recorded."""


class Allocation(msgspec.Struct, frozen=True):
    """One allocation and the file that has its bytes."""

    file: str
    """Of the directory: an array of ``size`` bytes. The byte at address ``a`` has the index ``a - address``."""
    address: int
    """As the program has it."""
    size: int
    """Bytes."""
    kind: AllocationKind
    freed: bool
    """The program had freed it in stream order; its memory was held for the next allocation."""
    number: int
    """Of the region, in the order in which they were made."""
    device: int
    """CUDA's ordinal in the program."""
    gpu: str | None
    """UUID; None for the memory of a simulated GPU."""
    began: float
    """When its copying began; seconds of CLOCK_REALTIME."""
    ended: float


class Skipped(msgspec.Struct, frozen=True):
    """An allocation of the preload's that is not in the snapshot."""

    address: int
    size: int
    reason: str


class NotIncluded(msgspec.Struct, frozen=True):
    """Memory of a kind that no snapshot has."""

    what: str
    """A counter of the preload, or a kind of memory that it does not see."""
    count: int | None
    """Allocations since the program's start, freed ones too; None where they are not counted."""
    reason: str


class SnapshotDocument(msgspec.Struct, frozen=True):
    """The whole file."""

    format: int
    pid: int
    start_ticks: int
    """When the process started, as field 22 of /proc/PID/stat has it."""
    uid: int
    command: str
    began: float
    """Seconds of CLOCK_REALTIME."""
    ended: float
    note: str
    allocations: tuple[Allocation, ...]
    skipped: tuple[Skipped, ...]
    not_included: tuple[NotIncluded, ...]
