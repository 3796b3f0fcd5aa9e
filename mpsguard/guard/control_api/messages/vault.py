"""Messages about the vault and its sessions: ``vault``, ``resize``."""

from typing import Annotated

import msgspec

from mpsguard.vault.server.counters import Counters
from mpsguard.vault.wire.checkpoint_requests import CheckpointOutcome
from mpsguard.vault.wire.latency_counts import LatencyCounts
from mpsguard.vault.wire.region import LeaseRole, RegionLayout, SessionKey


class ShowArguments(msgspec.Struct):
    """Which session."""

    uid: int
    session: str


class ReleaseArguments(msgspec.Struct):
    """What; without a region the whole session."""

    uid: int
    session: str
    region: str | None = None
    force: bool = False


class CheckpointArguments(msgspec.Struct):
    """Which session, and the name of the image."""

    uid: int
    session: str
    image: str


class CheckpointResult(msgspec.Struct, frozen=True):
    """The request is where the session's writer sees it with its next publication."""

    session: str
    image: str
    number: int
    """Of the request, in this session."""


class SessionSummary(msgspec.Struct, frozen=True):
    """A session in a line. Sizes in bytes."""

    uid: int
    name: str
    generation: int
    writer: int | None
    """Pid."""
    readers: int
    regions: int
    chunks: int
    size: int
    keep: float | None
    """Seconds it is kept once no process holds a lease; None: for good."""


class VaultList(msgspec.Struct, frozen=True):
    """All sessions, and the vault's counters."""

    sessions: tuple[SessionSummary, ...]
    counters: Counters


class LeaseView(msgspec.Struct, frozen=True):
    """A lease, without its token."""

    pid: int
    uid: int
    role: LeaseRole
    regions: tuple[str, ...]
    ready: bool
    """Of a standby: whether it could go on at once."""


class RegionView(msgspec.Struct, frozen=True):
    """A region, without the application's own words."""

    name: str
    generation: int
    layout: RegionLayout
    sealed: int
    metadata_bytes: int
    metadata_version: int


class SessionView(msgspec.Struct, frozen=True):
    """A session in full."""

    summary: SessionSummary
    leases: tuple[LeaseView, ...]
    regions: tuple[RegionView, ...]
    sequence: int
    """How often its forward state was published; 0: never."""
    state_bytes: int
    latency: LatencyCounts | None = None
    """Latencies of the requests that the program marks; None if it marks none."""
    checkpoint: CheckpointOutcome | None = None
    """What the program says of its last checkpoint; None if it takes none."""
    requested_checkpoint: CheckpointOutcome | None = None
    """The same of the last one that another process asked for; None: nothing did."""


class ReleaseResult(msgspec.Struct, frozen=True):
    """Done."""

    session: str
    region: str | None


Share = Annotated[float, msgspec.Meta(gt=0, le=100)]


class ResizeArguments(msgspec.Struct):
    """Which session, and what it is to have."""

    session: str
    share: Share
    """Percent of the SMs."""
    uid: int | None = None
    """Of the session; None if there is only one of that name."""


class Resized(msgspec.Struct, frozen=True):
    """A session has another share."""

    session: SessionKey
    share: float
    """Percent of the SMs."""
    before: float | None
    """Its share until then; None if it is not known, or there was none."""
    pid: int
    """The process that goes on."""
