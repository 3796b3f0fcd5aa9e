"""Messages about the guard itself: ``status``, ``check``, ``repaired``, ``events``, ``metrics``, ``reload``."""

import msgspec

from mpsguard.guard.control_api.health import DeviceFault, Health, ProbeKind
from mpsguard.guard.control_api.protocol import Event
from mpsguard.guard.model import LaneReport


class DomainStatus(msgspec.Struct, frozen=True):
    """One domain at one moment."""

    name: str
    pipe_directory: str
    gpus: tuple[str, ...]
    multiuser: bool
    lane: LaneReport
    """The active one."""
    spare: LaneReport | None
    """The one on which standbys wait, if there is one."""
    clients: int
    """Those on the active lane."""
    parked: int
    sockets_held: bool
    """Whether the service manager holds the public sockets, so that clients wait while no guard runs."""
    impersonates: bool
    """Whether clients are introduced to the lane as themselves."""
    spare_clients: int = 0
    """Those on the spare lane."""


class SensorStatus(msgspec.Struct, frozen=True):
    """One sensor at one moment."""

    name: str
    present: bool
    detail: str


class Status(msgspec.Struct, frozen=True):
    """The guard at one moment."""

    version: str
    started_at: float
    health: Health
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    domains: tuple[DomainStatus, ...]
    sensors: tuple[SensorStatus, ...]


class CheckArguments(msgspec.Struct):
    """What the probe is for."""

    purpose: ProbeKind


class Repaired(msgspec.Struct, frozen=True):
    """The device faults that no longer stand."""

    device_faults: tuple[DeviceFault, ...]


class EventList(msgspec.Struct, frozen=True):
    """The last events, oldest first."""

    events: tuple[Event, ...]


class Exposition(msgspec.Struct, frozen=True):
    """Metrics in Prometheus' text format."""

    text: str


class Reloaded(msgspec.Struct, frozen=True):
    """What a reload has changed."""

    keys: tuple[str, ...]
    """The keys with a new value, all of which are in force; none if the configuration is as it was."""
