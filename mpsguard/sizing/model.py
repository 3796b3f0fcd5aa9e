"""Time by share: ``l = m/t + b``, from two measured points.

A share is given in percent of the SMs, as CUDA_MPS_ACTIVE_THREAD_PERCENTAGE has it; ``t`` is the same as a fraction.
The driver gives whole SMs (or pairs of them), so that shares that are near each other may be the same. A time is in
seconds for a unit of work: a request, a published state, or a run of the command.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

WHOLE: Final = 100.0
"""Percent: all SMs."""

_ROUNDING: Final = 1e-9
"""Percent. A share that is this near to a whole number is that number; more than the error of some divisions."""


class TimeModel(msgspec.Struct, frozen=True):
    """The time of a unit of work by share: ``m/t + b``."""

    m: float
    """Seconds of work that all SMs share, with all SMs."""
    b: float
    """Seconds that do not depend on the share."""

    def seconds(self, share: float) -> float:
        """Return the predicted time at ``share`` percent."""
        return self.m * WHOLE / share + self.b


def through(first: tuple[float, float], second: tuple[float, float]) -> TimeModel:
    """Return the model through two points of share (percent) and time (seconds); ValueError if they have one share."""
    (share, seconds), (other, others_seconds) = first, second
    if share == other:
        raise ValueError(f"two points at a share of {share:g} %")
    m = (seconds - others_seconds) / (WHOLE / share - WHOLE / other)
    return TimeModel(m, seconds - m * WHOLE / share)


def least_share(model: TimeModel, slip: float, *, of: float = WHOLE) -> float:
    """Return the least share with a predicted time of at most ``1 + slip`` times the one at ``of``.

    Args:
        model: one with a time above 0 at ``of``.
        slip: as a fraction, 0 or more.
        of: the share to compare with, in percent.

    Returns:
        Whole percent, 1 at least, or ``of`` itself.
    """
    if model.m <= 0:
        return min(1.0, of)
    least = WHOLE / ((1 + slip) * WHOLE / of + slip * model.b / model.m)
    return min(max(1.0, float(math.ceil(least - _ROUNDING))), of)


def r_squared(model: TimeModel, points: Sequence[tuple[float, float]]) -> float:
    """Return how much of the variance of the measured times (share, seconds) the model explains; 1: all of it."""
    mean = math.fsum(seconds for _, seconds in points) / len(points)
    total = math.fsum((seconds - mean) ** 2 for _, seconds in points)
    missed = math.fsum((seconds - model.seconds(share)) ** 2 for share, seconds in points)
    if total == 0:
        return 1.0 if missed == 0 else 0.0
    return 1 - missed / total
