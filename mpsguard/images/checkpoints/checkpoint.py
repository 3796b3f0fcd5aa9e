"""One checkpoint, as the program sees it."""

import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from mpsguard.images.checkpoints.announcements import UnderWay
from mpsguard.images.checkpoints.errors import CheckpointRefusedError
from mpsguard.images.checkpoints.messages import CheckpointRefusal, Ended
from mpsguard.images.checkpoints.piece_table import CopierProgress
from mpsguard.vault.wire.region import check_name

_AHEAD: Final = 0.1
"""Of the time from one publication to the next, for digests of what is sealed."""
_MOST_AHEAD: Final = 20e-3
"""Seconds of one publication."""
_LATE: Final = 10.0
"""Seconds from the first publication that could take a checkpoint, after which the cut digests what is left."""


class CheckpointState(StrEnum):
    """How far a checkpoint is."""

    ARMED = "armed"
    """Its cut comes with the next publication."""
    UNDER_WAY = "under way"
    COMMITTED = "committed"
    REFUSED = "refused"


class CheckpointPump(Protocol):
    """What drives a checkpoint on: `mpsguard.images.checkpoints.checkpoints.Checkpoints`."""

    def pump(self, checkpoint: "Checkpoint", timeout: float | None) -> None:
        """Handle what the copier says until the checkpoint has ended, is armed again, or the time is over."""

    def progress(self, checkpoint: "Checkpoint") -> CopierProgress | None:
        """Return how far the copier is; None unless the checkpoint is under way."""


class Checkpoint:
    """A checkpoint of a session, from its request to its end."""

    def __init__(self, image: str, pump: CheckpointPump) -> None:
        """Create it; raise BadRequestError unless ``image`` is a name that an image may have."""
        check_name("image", image)
        self.image = image
        """Name of the image."""
        self.state = CheckpointState.ARMED
        self.ended: Ended | None = None
        """What came of the last try."""
        self.tries = 0
        """Cuts that were taken for it."""
        self.is_requested = False
        """Whether another process asked for it (`mpsguard-ctl vault checkpoint`, the receiver of a migration)."""
        self.hands_over = False
        """Whether the program stands still behind the cut until another process takes over."""
        self._pump = pump

    @property
    def is_under_way(self) -> bool:
        """Whether its cut was taken, and the copier is at work on it."""
        return self.state is CheckpointState.UNDER_WAY

    def progress(self) -> CopierProgress | None:
        """Return how far the copier is; None unless the checkpoint is under way. Waits for nothing."""
        return self._pump.progress(self)

    def wait(self, timeout: float | None = None) -> Ended:
        """Return when the image is on disk.

        Args:
            timeout: seconds; None: as long as the checkpoint may take (``deadline``).

        Raises:
            CheckpointRefusedError: it was not committed. The image that had its name before is untouched, unless the
                copier died in the very moment of the commit: then the name has the old image or the new one, whole.
                If the state is ARMED, it is taken again at the next publication.
            TimeoutError: it has not ended.
        """
        self._pump.pump(self, timeout)
        ended = self.ended
        if self.is_under_way:
            within = "its deadline" if timeout is None else f"{timeout:g} s"
            raise TimeoutError(f"checkpoint {self.image!r} has not ended within {within}: {self.progress()}")
        if self.state is CheckpointState.COMMITTED and ended is not None:
            return ended
        if ended is None:
            raise CheckpointRefusedError(
                CheckpointRefusal.CANCELLED, "its cut was not taken: nothing was published since"
            )
        again = "; taken again at the next publication" if self.state is CheckpointState.ARMED else ""
        raise CheckpointRefusedError(ended.refusal or CheckpointRefusal.CANCELLED, ended.message + again)


@dataclass
class RunningCheckpoint:
    """A checkpoint from its cut to its end."""

    checkpoint: Checkpoint
    serial: int
    under_way: UnderWay
    began: float
    """CLOCK_MONOTONIC."""
    patience: float
    """Seconds for which it may still hold the program."""


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
