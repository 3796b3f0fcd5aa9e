"""Limits and accounting of what the vault holds, for each user and in total. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from mpsguard.linux.identity import is_root
from mpsguard.vault.wire import state_buffer
from mpsguard.vault.wire.errors import QuotaError, TooLargeError
from mpsguard.vault.wire.region import RegionLayout, SessionRecord

SHARE: Final = 4
"""A user other than root gets at most this fraction (1/4) of the storage's places, so that one user that fills its
share leaves room for three others."""

RESERVE: Final = 8
"""This fraction (1/8) of every kind of place is reserved for root, so that the machine's own services find one."""

_RECORDS: Final = 2
"""State buffers of a session: the current one, and the spare for the next generation."""


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits, sizes in bytes. ``*_per_uid`` count what a user owns, also if another user created it."""

    bytes_per_uid: int = 1 << 40
    host_bytes_per_uid: int = 1 << 30
    """Host memory: regions that lie on no GPU, and state buffers. It outlives the process that filled it, and the
    limits of that process."""
    regions_per_uid: int = 1024
    sessions_per_uid: int = 64
    chunks_per_uid: int = 8192
    """Each costs one descriptor in the guard and one in the descriptor storage."""
    chunks: int = 32768
    """Of all users together."""
    bundles: int = 1024
    """Descriptors that the storage can hold: one for each region, three for each session."""
    chunks_per_region: int = 2048
    metadata_bytes: int = 16384
    metadata_per_uid: int = 1 << 20
    """Bytes over all regions of a user: every change of a session writes all of its metadata to the manifest."""
    state_bytes: int = 16 << 20
    leases_per_session: int = 64
    connections_per_uid: int = 128
    connections: int = 1024


BUNDLES_PER_SESSION = 3
"""The manifest, the state buffer, and the spare state buffer for the next generation."""


class Usage(msgspec.Struct, frozen=True):
    """Resources that are held, or are about to be."""

    bytes: int = 0
    regions: int = 0
    chunks: int = 0
    sessions: int = 0
    host: int = 0
    """Bytes of host memory."""
    metadata: int = 0
    """Bytes of metadata of the regions."""

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
    def bundles(self) -> int:
        """Number of descriptors that the storage needs for it."""
        return self.regions + BUNDLES_PER_SESSION * self.sessions


def of_region(layout: RegionLayout, metadata: bytes) -> Usage:
    """Return the usage of one region."""
    host = layout.size if layout.gpu is None else 0
    return Usage(layout.size, 1, len(layout.sizes), 0, host, len(metadata))


def of_session(capacity: int) -> Usage:
    """Return the usage of a session without regions and with ``capacity`` bytes of forward state."""
    return Usage(sessions=1, host=_RECORDS * state_buffer.size(capacity))


def of_sessions(sessions: Iterable[SessionRecord]) -> Usage:
    """Return the total usage of ``sessions``."""
    used = Usage()
    for session in sessions:
        used += of_session(session.capacity)
        for region in session.regions.values():
            used += of_region(region.layout, region.metadata)
    return used


def check_region(quota: Quota, layout: RegionLayout, metadata: bytes) -> None:
    """Raise TooLargeError if a region exceeds a limit that does not depend on other regions."""
    if not layout.sizes or len(layout.sizes) > quota.chunks_per_region:
        raise TooLargeError(f"{len(layout.sizes)} chunks; a region has 1 to {quota.chunks_per_region}")
    check_metadata(quota, metadata)


def check_metadata(quota: Quota, metadata: bytes) -> None:
    """Raise TooLargeError if the metadata exceed their limit."""
    if len(metadata) > quota.metadata_bytes:
        raise TooLargeError(f"{len(metadata)} bytes of metadata; at most {quota.metadata_bytes}")


class FullError(QuotaError):
    """The vault is full for all users, independent of the user's own share."""


def room_of(uid: int, total: int) -> int:
    """Return how many of ``total`` places are available to users other than root together (to root: all of them)."""
    return total if is_root(uid) else total - total // RESERVE


def heavier(usage: Mapping[int, Usage], uid: int, more: Usage) -> list[int]:
    """Return the users that hold more storage places than ``uid`` will with ``more``, the heaviest first."""
    own = (usage.get(uid, Usage()) + more).bundles
    return sorted(
        (other for other, used in usage.items() if not is_root(other) and other != uid and used.bundles > own),
        key=lambda other: -usage[other].bundles,
    )


def check_room(quota: Quota, uid: int, users: Usage, all_users: Usage, more: Usage) -> None:
    """Raise QuotaError if ``more`` exceeds the owner's limits, FullError if it exceeds those of all users."""
    wanted, total = users + more, all_users + more
    share = quota.bundles if is_root(uid) else quota.bundles // SHARE
    for what, value, limit in (
        ("bytes of this user", wanted.bytes, quota.bytes_per_uid),
        ("bytes of host memory of this user", wanted.host, quota.host_bytes_per_uid),
        ("bytes of metadata of this user", wanted.metadata, quota.metadata_per_uid),
        ("regions of this user", wanted.regions, quota.regions_per_uid),
        ("sessions of this user", wanted.sessions, quota.sessions_per_uid),
        ("chunks of this user", wanted.chunks, quota.chunks_per_uid),
        ("descriptors of this user in the storage", wanted.bundles, share),
    ):
        if value > limit:
            raise QuotaError(f"{what} would be {value}; at most {limit}")
    for what, value, limit in (
        ("chunks of all users", total.chunks, room_of(uid, quota.chunks)),
        ("descriptors in the storage", total.bundles, room_of(uid, quota.bundles)),
    ):
        if value > limit:
            raise FullError(f"{what} would be {value}; at most {limit}")
