"""The vault's types: session, region, layout, lease, grant.

A *session* is a name space of its owner and the unit of fencing: it has one generation, at most one writer, any number
of readers, one forward state, and regions. A *region* is memory held as descriptors, one for each chunk. Sizes and
addresses are in bytes; times are in seconds of CLOCK_BOOTTIME, which advances while the guard does not run.
"""

import re
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.linux.identity import ProcessKey
from mpsguard.vault.wire.errors import BadRequestError

_NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}\Z"
Name = Annotated[str, Meta(pattern=_NAME)]
"""Name of a session or region."""

ChunkSize = Annotated[int, Meta(ge=1, le=1 << 48)]
Address = Annotated[int, Meta(ge=0, lt=1 << 57, multiple_of=4096)]
Gpu = Annotated[str, Meta(pattern=r"^(GPU|MIG)-[0-9A-Za-z/-]{1,80}\Z")]
"""UUID of a GPU or MIG device as the driver prints it."""

Uid = Annotated[int, Meta(ge=0, lt=1 << 32)]


class LeaseRole(StrEnum):
    """What a lease allows."""

    WRITER = "writer"
    READER = "reader"
    STANDBY = "standby"
    """A reader that the guard may promote to writer."""
    FENCED = "fenced"
    """A former writer; it keeps its mappings and has no other rights."""


class SessionKey(msgspec.Struct, frozen=True, order=True):
    """Identifies a session by its owner and its name."""

    uid: int
    name: str

    def __str__(self) -> str:
        return f"{self.uid}/{self.name}"


class RegionLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory layout of a region: the same for every process that maps it."""

    sizes: tuple[ChunkSize, ...]
    """Size of each chunk in bytes, in the order in which they are mapped back to back."""
    va: Address | None = None
    """Address of the first chunk in every process; None if the address does not matter."""
    gpu: Gpu | None = None
    """GPU that holds the memory; None for host memory."""

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(self.sizes)


class RegionRecord(msgspec.Struct, frozen=True):
    """A region of memory in the vault."""

    name: str
    id: int
    """Unique in this vault, never reused."""
    layout: RegionLayout
    generation: int
    """Generation of the session when the region was created."""
    metadata: bytes = b""
    """Opaque to the vault; the application defines it."""
    metadata_version: int = 0
    """Incremented whenever `metadata` is replaced."""
    sealed: tuple[int, ...] = ()
    """Indices of the sealed chunks, in ascending order."""

    @property
    def is_sealed(self) -> bool:
        """Whether all chunks are sealed."""
        return len(self.sealed) == len(self.layout.sizes)


class Lease(msgspec.Struct, frozen=True):
    """The right of one process to a session; ends with its connection or, after a guard restart, with the process."""

    token: int
    process: ProcessKey
    uid: int
    role: LeaseRole
    regions: tuple[str, ...] = ()
    """Regions of which the process has received the descriptors and has not reported them closed."""
    ready: bool = False
    """For a standby: whether it has reported that it could take over at once."""


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Access for another user to a session."""

    uid: Uid
    write: bool = False
    """Whether that user may also become the writer. What it opens it can write to in any case: descriptors of memory
    cannot be restricted on a GPU, and are not elsewhere."""


class Carried(msgspec.Struct, frozen=True):
    """The forward state at the moment its writer was fenced off."""

    sequence: int
    generation: int
    state: bytes | None
    """None if no state was ever published."""


class SessionRecord(msgspec.Struct, frozen=True):
    """A session at one moment. Changed only by `mpsguard.vault.server.transitions`."""

    key: SessionKey
    id: int
    """Unique in this vault, never reused."""
    capacity: int
    """Maximum size of the forward state in bytes."""
    keep: float | None = None
    """Seconds that the session is kept while no process holds a lease on it; None: until it is released by command."""
    grants: tuple[Grant, ...] = ()
    generation: int = 1
    writer: Lease | None = None
    readers: tuple[Lease, ...] = ()
    regions: dict[str, RegionRecord] = msgspec.field(default_factory=dict)
    """By name; never modified in place."""
    carried: Carried | None = None
    """The forward state until the state buffer of this generation is in the descriptor storage; None afterwards."""
    idle_since: float | None = None
    """Time since when no process has held a lease."""
    orphaned: bool = False
    """Whether the last writer ended without giving its lease back: a ready standby is then to be promoted."""

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All leases, the writer's first if there is one."""
        return self.readers if self.writer is None else (self.writer, *self.readers)

    def lease(self, token: int) -> Lease | None:
        """Return the lease with that token, or None."""
        return next((lease for lease in self.leases if lease.token == token), None)


def check_name(kind: str, name: str) -> None:
    """Raise BadRequestError unless ``name`` is one that a ``kind`` ("session", "region", "image") may have."""
    if not re.match(_NAME, name):
        a_kind = f"an {kind}" if kind[:1] in "aeiou" else f"a {kind}"
        raise BadRequestError(
            f"{name!r} is no name of {a_kind}: letters, digits and _.:/- are allowed, at most 128, the first one a "
            "letter, a digit or _"
        )
