"""Second places: where a client's drivers are, as it is written down for the next guard, and where it is to move."""

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Protocol

import msgspec

from mpsguard.guard.config import DomainConfig
from mpsguard.linux.identity import ProcessKey


class SecondPlace(msgspec.Struct, frozen=True):
    """A client with a second driver, or without a first one, as the next guard must know it."""

    process: ProcessKey
    lane: str
    second_lane: str | None
    lane_before: str | None
    went_over_at: float | None
    lost: bool
    moved_at: float | None = None
    share: float | None = None
    """Of one that has moved, or is to."""
    moving_to: str | None = None
    """The lane that it was asked to move to."""
    number: int = 0
    """Of that request."""
    word: int = 0
    """The last word by which it was asked; 0: it never was."""
    times: int = 0
    """How often it has gone over."""


class Move(msgspec.Struct, frozen=True):
    """Where a client is to go on without a fault, and with which percent of the SMs (None: as it has)."""

    lane: str
    share: float | None = None
    number: int = 0
    """Of the request; 0: of none."""


def load_places(path: Path) -> tuple[SecondPlace, ...]:
    """Return what the guard before this one has written down; nothing if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[SecondPlace, ...])
    except (OSError, msgspec.DecodeError):
        return ()


class Verdicts(Protocol):
    """What triage has found about a domain's clients."""

    @property
    def settings(self) -> DomainConfig:
        """The domain's configuration now."""

    @property
    def culprits(self) -> Set[ProcessKey]:
        """Those that are proven to have caused a fault, at any time."""

    @property
    def innocents(self) -> Mapping[ProcessKey, float]:
        """Those that are proven innocent of a fault, with when it began."""
