"""Messages of the command ``classes``."""

import msgspec

from mpsguard.guard.config import Objective, ServiceClass
from mpsguard.vault.wire.region import SessionKey


class Arguments(msgspec.Struct):
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
