"""Time by share: ``l = m/t + b``, from two measured points, or from three ``l = max(floor, m/t + b)``.

A kernel with fewer blocks than the SMs of a share takes no longer on that share than on all: from there on the time is
flat. A third point that is well below the line through the other two says so; one on the line, or above it, does not.

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


class TimeModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time of a unit of work by share: ``m/t + b``, and no less than ``floor``."""

    m: float
    """Seconds of work that all SMs share, with all SMs."""
    b: float
    """Seconds that do not depend on the share."""
    floor: float | None = None
    """Seconds with shares in which all blocks fit; None if no such were found."""

    def seconds(self, share: float) -> float:
        """Return the predicted time at ``share`` percent."""
        line = self.m * WHOLE / share + self.b
        return line if self.floor is None else max(line, self.floor)


def through(first: tuple[float, float], second: tuple[float, float]) -> TimeModel:
    """Return the model through two points of share (percent) and time (seconds); ValueError if they have one share."""
    (share, seconds), (other, others_seconds) = first, second
    if share == other:
        raise ValueError(f"two points at a share of {share:g} %")
    m = (seconds - others_seconds) / (WHOLE / share - WHOLE / other)
    return TimeModel(m, seconds - m * WHOLE / share)


def with_floor(
    first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float], *, beyond: float
) -> TimeModel:
    """Return the model for three points of rising share.

    Args:
        first: share (percent) and time (seconds).
        middle: one between the others.
        last: one to the right; its time is the floor if there is one.
        beyond: by how much, as a fraction, the middle one must be faster than the line says for a floor.
    """
    line = through(first, last)
    share, seconds = middle
    if line.m <= 0 or line.seconds(share) <= (1 + beyond) * seconds:
        return line
    return msgspec.structs.replace(through(first, middle), floor=last[1])


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
    if model.floor is None:
        least = WHOLE / ((1 + slip) * WHOLE / of + slip * model.b / model.m)
    else:
        # Above 0, because the line is below the floor at ``of``.
        least = model.m * WHOLE / ((1 + slip) * model.seconds(of) - model.b)
    return min(max(1.0, float(math.ceil(least - _ROUNDING))), of)


def r_squared(model: TimeModel, points: Sequence[tuple[float, float]]) -> float:
    """Return how much of the variance of the measured times (share, seconds) the model explains; 1: all of it."""
    mean = math.fsum(seconds for _, seconds in points) / len(points)
    total = math.fsum((seconds - mean) ** 2 for _, seconds in points)
    missed = math.fsum((seconds - model.seconds(share)) ** 2 for share, seconds in points)
    if total == 0:
        return 1.0 if missed == 0 else 0.0
    return 1 - missed / total
