"""What `allocations.json` in a snapshot says."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.preload.zone_table import ZoneTable

_COUNTED: Final[Mapping[str, str]] = {
    "plain_small": "allocations of at most 1 MiB, left to the driver by MPSGUARD_ZONES_SMALL=plain",
    "plain_async": "allocated in stream order with a driver that does not tell streams apart: the driver's pool",
    "plain_capture": "allocated while a stream was captured: they belong to the graph",
    "plain_devices": "the program used more than one GPU: what it allocated from then on stayed with the driver",
    "plain_device": "the GPU lacks virtual memory management or concurrent managed access",
    "plain_caller": "allocated by a library that exports its memory itself (MPSGUARD_ZONES_PLAIN_CALLERS)",
    "plain_context": "green contexts were in use",
    "plain_unarmed": "no more zones might be armed, so the allocation was left to the driver",
    "plain_driver": "a driver call of the preload failed, so the allocation was left to the driver",
    "plain_memory": "the preload had no host memory for its records, so the allocation was left to the driver",
    "plain_pool": "of a memory pool of the driver's that is exported, limited, elsewhere or reached by others",
    "plain_stream": "allocated in a stream of another context: the driver's pool",
    "unlisted": "regions that found the zone table full",
    "ipc_imported": "memory of another process: a snapshot of that process has it",
}
_UNSEEN: Final[Mapping[str, str]] = {
    "managed memory": "cuMemAllocManaged is not the preload's",
    "virtual memory management": "what the program made itself by cuMemCreate (PyTorch's expandable_segments)",
    "arrays and textures": "cuArrayCreate and its like are not the preload's",
    "the driver's own": "code, global variables of modules, local memory, stacks, workspaces of the driver",
    "host memory": "pinned host memory is the process's own: a core dump has it",
    "registers and shared memory": "a kernel's state while it runs cannot be read from outside",
}
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


def not_included(table: ZoneTable) -> tuple[NotIncluded, ...]:
    """Return what is missing: the counted kinds where there were any, and those that cannot be counted."""
    counted = [
        NotIncluded(name, table.counters[name], why) for name, why in _COUNTED.items() if table.counters.get(name)
    ]
    if table.unreadable:
        counted.append(NotIncluded("unreadable", table.unreadable, "entries of the zone table that made no sense"))
    return (*counted, *(NotIncluded(name, None, why) for name, why in _UNSEEN.items()))
