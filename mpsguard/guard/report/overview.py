"""The guard at one moment, for a page: lanes, clients, incidents, sensors, and nothing of how it is drawn."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from mpsguard.guard.journal.records import IncidentSummary
from mpsguard.guard.model import Client, LaneReport, Watched

MOST_CLIENTS: Final = 200
"""Clients that a page shows. Where there are more, users take turns, so that one user's do not fill the page."""
MOST_INCIDENTS: Final = 50
"""Incidents that a page shows, the newest ones."""


class OverviewLane(msgspec.Struct, frozen=True):
    """A lane, and what is on it."""

    report: LaneReport
    role: str
    """active or standby."""
    clients: int
    waiting: int
    """Clients that are held back until it is ready."""


class OverviewClient(msgspec.Struct, frozen=True):
    """A client, and what is known of it beside its connection."""

    client: Client
    memory: int | None
    """Bytes of GPU memory, of all GPUs together; None while that is not known."""
    pod: str
    """Namespace and name of its pod, or its UID if these are not known; "" without one."""
    watched: Watched
    watch_reason: str
    """Why it is not watched; "" if it is."""
    exceeds: bool = False
    """Whether it has more memory than it was promised."""
    survives: str = ""
    """Whether it would live through an SM fault, and why not; "" without a second driver."""


class OverviewGpu(msgspec.Struct, frozen=True):
    """A GPU, and what the guard's clients have of it."""

    address: str
    """PCI address, as in the kernel log."""
    model: str
    used: int | None
    """Bytes that all processes together have of it; None if that is not known."""
    total: int | None
    clients: int
    """Clients with memory on it."""
    faulty: bool = False
    """Whether a fault of the device stands."""


class OverviewSensor(msgspec.Struct, frozen=True):
    """A sensor, and whether it sees something."""

    name: str
    present: bool
    detail: str


class Overview(msgspec.Struct, frozen=True):
    """The guard at one moment. Times are UNIX seconds."""

    host: str
    version: str
    at: float
    started_at: float
    health: str
    """healthy, degraded or fault."""
    problems: tuple[str, ...] = ()
    lanes: tuple[OverviewLane, ...] = ()
    gpus: tuple[OverviewGpu, ...] = ()
    """Empty while NVML has not told of them."""
    clients: tuple[OverviewClient, ...] = ()
    clients_left_out: int = 0
    incidents: tuple[IncidentSummary, ...] = ()
    """Newest first."""
    incidents_unknown: str = ""
    """Why the incidents are not known; "" if they are."""
    sensors: tuple[OverviewSensor, ...] = ()


def shown_clients(clients: Iterable[Client]) -> list[Client]:
    """Return the clients that a page shows, oldest first: where not all fit, an equal number of each user's oldest."""
    oldest_first = sorted(clients, key=lambda client: client.connected_at)
    seen: Counter[int] = Counter()
    turns = []
    for client in oldest_first:
        turns.append((seen[client.uid], client))
        seen[client.uid] += 1
    kept = sorted(turns, key=lambda turn: turn[0])[:MOST_CLIENTS]
    return sorted((client for _, client in kept), key=lambda client: client.connected_at)
