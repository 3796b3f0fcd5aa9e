"""How much the vault holds, for each user and in all. Pure."""

from collections.abc import Iterable

import msgspec

from mpsguard.vault.errors import QuotaError, TooLargeError
from mpsguard.vault.region import Layout, Session


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits. ``*_per_uid`` count what a user owns, whoever made it; sizes in bytes."""

    bytes_per_uid: int = 1 << 40
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

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.bytes + other.bytes,
            self.regions + other.regions,
            self.chunks + other.chunks,
            self.sessions + other.sessions,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            self.bytes - other.bytes,
            self.regions - other.regions,
            self.chunks - other.chunks,
            self.sessions - other.sessions,
        )

    @property
    def parcels(self) -> int:
        """Descriptors that the keeper needs for it."""
        return self.regions + PARCELS_PER_SESSION * self.sessions


def of_layout(layout: Layout) -> Usage:
    """What one region adds."""
    return Usage(layout.size, 1, len(layout.sizes), 0)


def of_sessions(sessions: Iterable[Session]) -> Usage:
    """What sessions hold together."""
    held = regions = chunks = count = 0
    for session in sessions:
        count += 1
        regions += len(session.regions)
        for region in session.regions.values():
            held += region.layout.size
            chunks += len(region.layout.sizes)
    return Usage(held, regions, chunks, count)


def check_region(quota: Quota, layout: Layout, metadata: bytes) -> None:
    """TooLargeError if a region could never be taken, whatever else is held."""
    if not layout.sizes or len(layout.sizes) > quota.chunks_per_region:
        raise TooLargeError(f"{len(layout.sizes)} chunks; a region has 1 to {quota.chunks_per_region}")
    check_metadata(quota, metadata)


def check_metadata(quota: Quota, metadata: bytes) -> None:
    """TooLargeError if there are too many bytes of it."""
    if len(metadata) > quota.metadata_bytes:
        raise TooLargeError(f"{len(metadata)} bytes of metadata; at most {quota.metadata_bytes}")


def check_room(quota: Quota, users: Usage, all_users: Usage, more: Usage) -> None:
    """QuotaError if ``more`` does not fit on top of what its owner has and of what all have."""
    wanted, total = users + more, all_users + more
    for what, value, limit in (
        ("bytes of this user", wanted.bytes, quota.bytes_per_uid),
        ("regions of this user", wanted.regions, quota.regions_per_uid),
        ("sessions of this user", wanted.sessions, quota.sessions_per_uid),
        ("chunks of this user", wanted.chunks, quota.chunks_per_uid),
        ("chunks of all users", total.chunks, quota.chunks),
        ("descriptors with the keeper", total.parcels, quota.parcels),
    ):
        if value > limit:
            raise QuotaError(f"{what} would be {value}; at most {limit}")
