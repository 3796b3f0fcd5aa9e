"""Messages about lanes: ``lanes``, ``classes``, ``move``, ``mps``."""

import msgspec

from mpsguard.guard.config import Objective, ServiceClass
from mpsguard.guard.model import LaneReport
from mpsguard.vault.wire.region import SessionKey


class LaneList(msgspec.Struct, frozen=True):
    """The lanes, looked at now."""

    lanes: tuple[LaneReport, ...]


class ClassesArguments(msgspec.Struct):
    """Of which domain."""

    domain: str | None = None


class ClassView(msgspec.Struct, frozen=True):
    """A service class, and how many use it."""

    domain: str
    directory: str
    """The value for CUDA_MPS_PIPE_DIRECTORY by which a program chooses it."""
    settings: ServiceClass
    clients: int


class ObjectiveView(msgspec.Struct, frozen=True):
    """An objective, what was measured in its last window, and what follows from it."""

    domain: str
    settings: Objective
    requests: int
    """Of `session`."""
    p99_ms: float | None
    """None without requests."""
    share: float
    """Percent of the SMs for the batch class with which the target would hold, as far as is known."""
    in_force: float | None
    """Largest share that a client of the batch class has; None without clients."""
    session: SessionKey | None = None
    """The slowest session of those with enough requests; None: several with few requests each, together."""
    held_back_by: tuple[int, ...] = ()
    """With `enforce`: pids of clients of the batch class that keep more than `share`, since they have no standby."""


class ClassList(msgspec.Struct, frozen=True):
    """The service classes of all domains, in the order of the configuration."""

    classes: tuple[ClassView, ...]
    objectives: tuple[ObjectiveView, ...] = ()
    """Those that are not off."""


class MoveArguments(msgspec.Struct):
    """Which domain; None: the only one."""

    domain: str | None = None


class ProgramLeft(msgspec.Struct, frozen=True):
    """An unmodified program that stays where it is."""

    pid: int
    why: str


class Switchover(msgspec.Struct, frozen=True):
    """The result of a failover or a planned switchover of one lane."""

    lane: str
    to: str | None
    """The lane that continues the work; None if nothing was moved."""
    moved: tuple[SessionKey, ...]
    left: tuple[SessionKey, ...]
    """Sessions without a ready standby elsewhere, or with one that could not be promoted."""
    unsaved: str | None = None
    """Why the new active lane could not be saved: then the next guard will route new clients to ``lane``."""
    programs: tuple[int, ...] = ()
    """Unmodified programs that moved, by their pids."""
    programs_left: tuple[ProgramLeft, ...] = ()
    """Those that ask for a second driver, and stay."""


class MpsArguments(msgspec.Struct):
    """One command line."""

    line: str
    domain: str | None = None
