"""How much the vault holds, for each user and in all. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from mpsguard.vault import state_buffer
from mpsguard.vault.errors import QuotaError, TooLargeError
from mpsguard.vault.region import Layout, Session

ROOT: Final = 0

SHARE: Final = 4
"""No user but root has more than one in so many of the keeper's places: one that fills its share leaves room for three
more of its kind."""

RESERVE: Final = 8
"""One in so many of every kind of place is root's alone, so that the machine's own services find one."""

_RECORDS: Final = 2
"""Of a session: the record of its forward state, and the one that is to take its place."""


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits. ``*_per_uid`` count what a user owns, whoever made it; sizes in bytes."""

    bytes_per_uid: int = 1 << 40
    host_bytes_per_uid: int = 1 << 30
    """Of the machine's own memory: regions that lie on no GPU, and the records of forward states. It outlives the
    process that filled it, and the limits of that process."""
    regions_per_uid: int = 1024
    sessions_per_uid: int = 64
    chunks_per_uid: int = 8192
    """Each costs the guard one descriptor, and its keeper as much."""
    chunks: int = 32768
    """Of all users."""
    parcels: int = 1024
    """Descriptors that the keeper can hold: one for each region, three for each session."""
    chunks_per_region: int = 2048
    metadata_bytes: int = 16384
    metadata_per_uid: int = 1 << 20
    """Bytes, of all regions of a user: a session is written down as a whole whenever it changes."""
    state_bytes: int = 16 << 20
    leases_per_session: int = 64
    connections_per_uid: int = 128
    connections: int = 1024


PARCELS_PER_SESSION = 3
"""The ledger, the record of the forward state, and the one that is to take its place."""


class Usage(msgspec.Struct, frozen=True):
    """What is held, or is about to be."""

    bytes: int = 0
    regions: int = 0
    chunks: int = 0
    sessions: int = 0
    host: int = 0
    """Bytes of the machine's own memory."""
    metadata: int = 0
    """Bytes of the regions' metadata."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.bytes + other.bytes,
            self.regions + other.regions,
            self.chunks + other.chunks,
            self.sessions + other.sessions,
            self.host + other.host,
            self.metadata + other.metadata,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            self.bytes - other.bytes,
            self.regions - other.regions,
            self.chunks - other.chunks,
            self.sessions - other.sessions,
            self.host - other.host,
            self.metadata - other.metadata,
        )

    @property
    def parcels(self) -> int:
        """Descriptors that the keeper needs for it."""
        return self.regions + PARCELS_PER_SESSION * self.sessions


def of_region(layout: Layout, metadata: bytes) -> Usage:
    """What one region adds."""
    host = layout.size if layout.gpu is None else 0
    return Usage(layout.size, 1, len(layout.sizes), 0, host, len(metadata))


def of_session(capacity: int) -> Usage:
    """What a session without regions adds, with that many bytes of forward state."""
    return Usage(sessions=1, host=_RECORDS * state_buffer.size(capacity))


def of_sessions(sessions: Iterable[Session]) -> Usage:
    """What sessions hold together."""
    used = Usage()
    for session in sessions:
        used += of_session(session.capacity)
        for region in session.regions.values():
            used += of_region(region.layout, region.metadata)
    return used


def check_region(quota: Quota, layout: Layout, metadata: bytes) -> None:
    """TooLargeError if a region could never be taken, whatever else is held."""
    if not layout.sizes or len(layout.sizes) > quota.chunks_per_region:
        raise TooLargeError(f"{len(layout.sizes)} chunks; a region has 1 to {quota.chunks_per_region}")
    check_metadata(quota, metadata)


def check_metadata(quota: Quota, metadata: bytes) -> None:
    """TooLargeError if there are too many bytes of it."""
    if len(metadata) > quota.metadata_bytes:
        raise TooLargeError(f"{len(metadata)} bytes of metadata; at most {quota.metadata_bytes}")


class FullError(QuotaError):
    """There is no room for anybody, whatever the user's own share."""


def room_of(uid: int, total: int) -> int:
    """How many of ``total`` places there are for all users like this one together."""
    return total if uid == ROOT else total - total // RESERVE


def heavier(usage: Mapping[int, Usage], uid: int, more: Usage) -> list[int]:
    """The users that have more of the keeper's places than ``uid`` will have with ``more``; the heaviest first."""
    own = (usage.get(uid, Usage()) + more).parcels
    return sorted(
        (other for other, used in usage.items() if other not in (ROOT, uid) and used.parcels > own),
        key=lambda other: -usage[other].parcels,
    )


def check_room(quota: Quota, uid: int, users: Usage, all_users: Usage, more: Usage) -> None:
    """QuotaError if ``more`` does not fit on top of what its owner has; FullError if not on top of what all have."""
    wanted, total = users + more, all_users + more
    share = quota.parcels if uid == ROOT else quota.parcels // SHARE
    for what, value, limit in (
        ("bytes of this user", wanted.bytes, quota.bytes_per_uid),
        ("bytes of host memory of this user", wanted.host, quota.host_bytes_per_uid),
        ("bytes of metadata of this user", wanted.metadata, quota.metadata_per_uid),
        ("regions of this user", wanted.regions, quota.regions_per_uid),
        ("sessions of this user", wanted.sessions, quota.sessions_per_uid),
        ("chunks of this user", wanted.chunks, quota.chunks_per_uid),
        ("descriptors of this user with the keeper", wanted.parcels, share),
    ):
        if value > limit:
            raise QuotaError(f"{what} would be {value}; at most {limit}")
    for what, value, limit in (
        ("chunks of all users", total.chunks, room_of(uid, quota.chunks)),
        ("descriptors with the keeper", total.parcels, room_of(uid, quota.parcels)),
    ):
        if value > limit:
            raise FullError(f"{what} would be {value}; at most {limit}")
