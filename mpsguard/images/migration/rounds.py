"""When a migration copies another round, hands over, or is given up. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

_SHRINKS: Final = 0.9
"""A round that copies more than this share of the one before it comes no nearer to the end."""


class NextStep(Enum):
    """What a migration does after a round."""

    COPY = auto()
    """Another round."""
    HAND_OVER = auto()
    GIVE_UP = auto()
    """The program would stand still for longer than it may; it goes on where it is."""


class CopyRound(NamedTuple):
    """One round, from the request to the last byte on the new GPU."""

    copied: int
    """Bytes that had changed since the round before it."""
    took: float
    """Seconds."""


@dataclass(frozen=True)
class MigrationLimits:
    """How long it is copied, and how long the program may stand still."""

    rounds: int = 8
    """At most, before the handover."""
    small: int = 64 << 20
    """Bytes: a round that copied no more is the last one."""
    pause: float | None = None
    """Seconds that the handover may be expected to take; None: it is made however long that is."""


def next_step(made: Sequence[CopyRound], limits: MigrationLimits) -> NextStep:
    """Return what comes after these rounds, of which there is at least one.

    The rest is taken for small if the last round was. It is not copied any longer once two rounds in a row bring it no
    nearer to that, or the rounds are used up: the program writes as fast as it is copied.
    """
    last = made[-1]
    if last.copied <= limits.small:
        return NextStep.HAND_OVER
    if len(made) < limits.rounds and not _stands_still(made):
        return NextStep.COPY
    # What a handover copies is about what the last round did, as fast.
    if limits.pause is not None and last.took > limits.pause:
        return NextStep.GIVE_UP
    return NextStep.HAND_OVER


def _stands_still(made: Sequence[CopyRound]) -> bool:
    if len(made) < 3:
        return False
    first, second, third = (each.copied for each in made[-3:])
    return second > _SHRINKS * first and third > _SHRINKS * second
