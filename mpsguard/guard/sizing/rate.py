"""The time of a unit of work from two readings of a session's counters."""

import math
from typing import Final

import msgspec

from mpsguard.guard.sizing.procedure import NotMeasurableError


class CounterReading(msgspec.Struct, frozen=True):
    """A session's counter at one moment."""

    at: float
    """Seconds, CLOCK_MONOTONIC."""
    generation: int
    count: int
    """Published states, or requests that ended."""
    busy: float | None = None
    """Seconds of these requests together; None where the time between two states is what counts."""


def seconds_per_unit(first: CounterReading, last: CounterReading, slip: float) -> float:
    """Return the seconds of a unit of work between two readings of one writer.

    Raises:
        NotMeasurableError: another process has become the writer, what was counted makes no sense, or it is too little:
            one unit more or less would change the time by more than ``slip``.
    """
    if last.generation != first.generation or last.count < first.count:
        raise NotMeasurableError("another process became the session's writer while its rate was measured")
    counted, needed = last.count - first.count, least_count(slip)
    if counted < needed:
        raise NotMeasurableError(
            f"{counted} units of work in {last.at - first.at:.3g} s are too few to tell a slip of {100 * slip:g} % "
            f"({needed} are needed): watch it longer (--seconds)"
        )
    seconds = last.at - first.at
    if first.busy is not None and last.busy is not None:
        seconds = last.busy - first.busy
    # What a program counts is its own word.
    if not 0 < seconds < math.inf:
        raise NotMeasurableError(
            f"{counted} requests that took {seconds:g} s together: the program counts them wrongly"
        )
    return seconds / counted


def least_count(slip: float) -> int:
    """Return how many units must be counted so that one more or less is no more than the slip."""
    return max(2, round(1 / slip))


START_JITTER: Final = 0.01
"""Seconds by which starting and reaping a process varies on a machine that does other things."""


def checked_run_time(seconds: float, slip: float) -> float:
    """Return the time of a run, if it is long enough to tell the slip from chance; else NotMeasurableError."""
    least = START_JITTER / slip
    if seconds < least:
        raise NotMeasurableError(
            f"a run of {seconds:.3g} s is too short to tell a slip of {100 * slip:g} % ({least:.3g} s are needed): "
            "give the command more work"
        )
    return seconds
