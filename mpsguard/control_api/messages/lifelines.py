"""Messages of the command ``lifelines``."""

import msgspec

from mpsguard.remedies.held_lifelines import Held


class Arguments(msgspec.Struct):
    """Whom to let go of, if anybody."""

    release: int | None = None


class LifelineList(msgspec.Struct, frozen=True):
    """What is held, and when that was so."""

    now: float
    """CLOCK_MONOTONIC seconds, the clock of the times in it."""
    lifelines: tuple[Held, ...]
