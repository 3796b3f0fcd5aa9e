"""Messages of the command ``lifelines``."""

import msgspec

from mpsguard.guard.remedies.held_lifelines import Lifeline


class Arguments(msgspec.Struct):
    """The process with the lifeline to let go of, if any."""

    release: int | None = None


class LifelineList(msgspec.Struct, frozen=True):
    """What is held, and when that was so."""

    now: float
    """CLOCK_MONOTONIC seconds, the clock of the times in it."""
    lifelines: tuple[Lifeline, ...]
