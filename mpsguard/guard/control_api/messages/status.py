"""Messages of the command ``status``."""

import msgspec

from mpsguard.guard.control_api.health import Health
from mpsguard.guard.model import LaneReport


class Arguments(msgspec.Struct):
    """None."""


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
