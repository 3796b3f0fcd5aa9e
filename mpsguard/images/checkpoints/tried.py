"""When publications have tried to take a checkpoint, and how much of them that may take."""

import time
from dataclasses import dataclass, replace
from typing import Final

from mpsguard.images.checkpoints.checkpoint import Checkpoint

_AHEAD: Final = 0.1
"""Of the time from one publication to the next, for digests of what is sealed."""
_MOST_AHEAD: Final = 20e-3
"""Seconds of one publication."""
_LATE: Final = 10.0
"""Seconds from the first publication that could take a checkpoint, after which the cut digests what is left."""


@dataclass(frozen=True)
class TriedCheckpoint:
    """A checkpoint that publications have tried to take, with their times (CLOCK_MONOTONIC)."""

    checkpoint: Checkpoint
    first: float
    before: float
    last: float

    @classmethod
    def again(cls, tried: "TriedCheckpoint | None", checkpoint: Checkpoint) -> "TriedCheckpoint":
        """Return what follows if it is tried now."""
        now = time.monotonic()
        if tried is None or tried.checkpoint is not checkpoint:
            # Without a publication before it is not known how often the program publishes.
            return cls(checkpoint, now, now, now)
        return replace(tried, before=tried.last, last=now)

    @property
    def to_spare(self) -> float:
        """Seconds of this publication that may go to what the cut needs."""
        return min(_AHEAD * (self.last - self.before), _MOST_AHEAD)

    @property
    def is_late(self) -> bool:
        """Whether the cut waits no longer: a program may seal more with each publication."""
        return self.last - self.first > _LATE
