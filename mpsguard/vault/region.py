"""The nouns of the vault as frozen types: session, region, layout, lease, grant.

A *session* is a name space of its owner and the unit of fencing: it has one generation, one writer at most, any number
of readers, one forward state, and regions. A *region* is memory held as descriptors, one for each chunk. Sizes and
addresses are bytes; times are seconds of CLOCK_BOOTTIME, which goes on while the guard does not run.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from mpsguard.model import ProcessKey

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}\Z")]
"""Of a session or region."""

ChunkSize = Annotated[int, Meta(ge=1, le=1 << 48)]
Address = Annotated[int, Meta(ge=0, lt=1 << 57, multiple_of=4096)]
Gpu = Annotated[str, Meta(pattern=r"^(GPU|MIG)-[0-9A-Za-z/-]{1,80}\Z")]
"""A GPU's or MIG device's UUID as the driver prints it."""

Uid = Annotated[int, Meta(ge=0, lt=1 << 32)]


class Role(StrEnum):
    """What a lease allows."""

    WRITER = "writer"
    READER = "reader"
    STANDBY = "standby"
    """A reader that the guard may promote to writer."""
    FENCED = "fenced"
    """Was the writer; may still map what it mapped, and do nothing more."""


class SessionKey(msgspec.Struct, frozen=True, order=True):
    """A session by its owner and its name."""

    uid: int
    name: str

    def __str__(self) -> str:
        return f"{self.uid}/{self.name}"


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a region looks like in memory: the same for everybody who maps it."""

    sizes: tuple[ChunkSize, ...]
    """Bytes of each chunk, in the order in which they are mapped one behind the other."""
    va: Address | None = None
    """Where the first chunk is mapped, in every process; None if that does not matter."""
    gpu: Gpu | None = None
    """On which GPU the memory lies; None for memory of the host."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(self.sizes)


class Region(msgspec.Struct, frozen=True):
    """Memory in the vault."""

    name: str
    id: int
    """Unique for this vault, never used again."""
    layout: Layout
    generation: int
    """Of the session, when the region was made."""
    metadata: bytes = b""
    """The application's own words; the vault does not read them."""
    metadata_version: int = 0
    """Raised whenever `metadata` is replaced."""
    sealed: tuple[int, ...] = ()
    """Indices of the chunks that are sealed, in order."""

    @property
    def is_sealed(self) -> bool:
        """Whether all of it is."""
        return len(self.sealed) == len(self.layout.sizes)


class Lease(msgspec.Struct, frozen=True):
    """The right of one process to a session, for as long as its connection, or else the process itself, lives."""

    token: int
    process: ProcessKey
    uid: int
    role: Role
    regions: tuple[str, ...] = ()
    """Regions whose descriptors it has, and has not said that it gave back."""
    ready: bool = False
    """Of a standby: whether it has said that it could go on at once."""


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another user that may see a session."""

    uid: Uid
    write: bool = False
    """Whether that user may become its writer too."""


class Carried(msgspec.Struct, frozen=True):
    """The forward state at the moment its writer was fenced off."""

    sequence: int
    generation: int
    state: bytes | None
    """None if nothing was ever published."""


class Session(msgspec.Struct, frozen=True):
    """A session at one moment. Changed only by `mpsguard.vault.transitions`."""

    key: SessionKey
    id: int
    """Unique for this vault, never used again."""
    capacity: int
    """Bytes that the forward state may have."""
    keep: float | None = None
    """Seconds that the session is kept once nobody holds a lease on it; None: until it is released by command."""
    grants: tuple[Grant, ...] = ()
    generation: int = 1
    writer: Lease | None = None
    readers: tuple[Lease, ...] = ()
    regions: dict[str, Region] = msgspec.field(default_factory=dict)
    """By name; never changed in place."""
    carried: Carried | None = None
    """The forward state as long as the record of this generation is not yet with the keeper."""
    idle_since: float | None = None
    """Since when nobody holds a lease."""
    orphaned: bool = False
    """Whether the last writer did not leave in order: then a standby that is ready is to go on."""

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The writer's, if there is one, and the others'."""
        return self.readers if self.writer is None else (self.writer, *self.readers)

    def lease(self, token: int) -> Lease | None:
        """The lease with that token."""
        return next((lease for lease in self.leases if lease.token == token), None)
