"""The steps of right-sizing: measure, fit, choose, confirm. What a measurement is, the caller says."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import median
from typing import Final

import msgspec

from mpsguard.guard.sizing.model import TimeModel, least_share, r_squared, through, with_floor

MOST_TRIES: Final = 4
"""Shares that are measured at most to confirm one: each costs twice the repeats."""

STEP: Final = 5.0
"""Percent to the next larger share at least: several SMs on every GPU, more than one step of the driver."""

LEAST_R_SQUARED: Final = 0.9
"""Below it the times follow another law, and a prediction is of no use."""

Measure = Callable[[float], float]
"""Measures the time of a unit of work, in seconds, at a share in percent; raises `NotMeasurableError`."""


class NotMeasurableError(Exception):
    """What was to be measured cannot be; the text says why, and what to do."""


class SizingPlan(msgspec.Struct, frozen=True):
    """What is to be found out."""

    shares: tuple[float, ...]
    """Percent, three or more, rising. The model goes through the first and the last; the others check it, and the one
    that is fastest beside it gives it a floor if it is fast enough."""
    slip: float
    """By how much the time may be longer than at the largest share, as a fraction."""
    repeats: int

    @property
    def reference(self) -> float:
        """The share that the others are compared with."""
        return self.shares[-1]


class Purpose(StrEnum):
    """What a share was measured for."""

    FIT = "fit"
    CHECK = "check"
    TRIED = "tried"
    """It was predicted to keep to the slip, and did not."""
    KEPT = "kept"
    """It kept to the slip, and so did a smaller one."""
    CHOSEN = "chosen"


class Point(msgspec.Struct, frozen=True):
    """One share, measured. Times are seconds for a unit of work."""

    share: float
    """Percent."""
    purpose: Purpose
    times: tuple[float, ...]
    """In the order in which they were measured."""
    seconds: float
    """Their median."""
    predicted: float
    """By the model as it was before this share was measured."""
    error: float
    """Of the prediction, as a fraction of the measured time; above 0 if the prediction is longer."""
    slip: float
    """How much longer the time is than at the largest share, measured in the same rounds; a fraction."""

    @property
    def spread(self) -> float:
        """How far the shortest and the longest time are apart, as a fraction of the median."""
        return (max(self.times) - min(self.times)) / self.seconds


class Sizing(msgspec.Struct, frozen=True):
    """What was found out."""

    plan: SizingPlan
    model: TimeModel
    """The last one."""
    r_squared: float | None
    """Over all points; None if the times differ by less than the slip, so that there is nothing to explain."""
    points: tuple[Point, ...]
    """By share, rising."""
    share: float | None
    """The least share that keeps to the slip, in percent; None if that was not found."""
    problem: str | None
    """Why not; None if it was."""

    @property
    def chosen(self) -> Point | None:
        """The measured point of the least share."""
        return next((point for point in self.points if point.share == self.share), None)


def rounds(shares: Sequence[float], repeats: int) -> Iterator[float]:
    """Yield each share ``repeats`` times, every other round backwards, so that a drift weighs on all alike."""
    for number in range(repeats):
        yield from reversed(shares) if number % 2 else shares


def size(measure: Measure, plan: SizingPlan) -> Sizing:
    """Find the least share; NotMeasurableError comes from ``measure``."""
    times = _measured(measure, plan.shares, plan.repeats)
    first, last = plan.shares[0], plan.reference
    seconds = {share: median(found) for share, found in times.items()}
    line = through((first, seconds[first]), (last, seconds[last]))
    middle = min(plan.shares[1:-1], key=lambda share: seconds[share] / line.seconds(share))
    model = _through(plan, seconds, middle)
    fitted = {first, last} if model.floor is None else {first, middle, last}
    points = {
        share: _point(model, share, Purpose.FIT if share in fitted else Purpose.CHECK, times[share], times[last])
        for share in plan.shares
    }
    problem = _misfit(plan, model, points)
    share = None
    if problem is None:
        share, model = _confirmed(measure, plan, model, points)
        if share is None:
            tried = ", ".join(f"{each.share:g} %" for each in points.values() if each.purpose is Purpose.TRIED)
            problem = f"the predicted share and the larger ones that were tried ({tried}) cost more than the slip"
    known = tuple(sorted(points.values(), key=lambda point: point.share))
    fit = None if _is_flat(plan, points) else r_squared(model, [(point.share, point.seconds) for point in known])
    return Sizing(plan, model, fit, known, share, problem)


def _measured(measure: Measure, shares: Sequence[float], repeats: int) -> dict[float, list[float]]:
    times: dict[float, list[float]] = {share: [] for share in shares}
    for share in rounds(shares, repeats):
        times[share].append(measure(share))
    return times


def _point(
    model: TimeModel, share: float, purpose: Purpose, times: Sequence[float], reference: Sequence[float]
) -> Point:
    seconds, predicted = median(times), model.seconds(share)
    error, slip = predicted / seconds - 1, seconds / median(reference) - 1
    return Point(share, purpose, tuple(times), seconds, predicted, error, slip)


def _is_flat(plan: SizingPlan, points: dict[float, Point]) -> bool:
    return abs(points[plan.shares[0]].slip) <= plan.slip


def _misfit(plan: SizingPlan, model: TimeModel, points: dict[float, Point]) -> str | None:
    """Return why the model does not hold for the points, or None if it does."""
    if _is_flat(plan, points):
        return None
    least, most = points[plan.shares[0]], points[plan.reference]
    if least.seconds < most.seconds:
        return (
            f"the time does not fall with the share ({least.seconds:.4g} s at {least.share:g} %, {most.seconds:.4g} s "
            f"at {most.share:g} %): something else decides it"
        )
    fit = r_squared(model, [(point.share, point.seconds) for point in points.values()])
    if fit < LEAST_R_SQUARED:
        return f"the times do not follow m/t + b (R² {fit:.3f}, below {LEAST_R_SQUARED:g})"
    return None


def _through(plan: SizingPlan, seconds: Mapping[float, float], middle: float) -> TimeModel:
    """Return the model through the first and the last share, and a third one if that is faster than their line."""
    first, middle_point, last = ((share, seconds[share]) for share in (plan.shares[0], middle, plan.reference))
    return with_floor(first, middle_point, last, beyond=plan.slip / 2)


def _confirmed(
    measure: Measure, plan: SizingPlan, model: TimeModel, points: dict[float, Point]
) -> tuple[float | None, TimeModel]:
    """Return the least share that keeps to the slip as measured, and the model at the end; adds to ``points``.

    A share that keeps to it with much to spare is a point of the floor, and says more of where that ends than the model
    knew: the model is laid through it, and what it predicts then is tried, too. A share below the smallest measured one
    is never chosen: nothing is known of it.

    A share that does not keep to it says how steep the time is near the end, where the model was wrong: the next one is
    where the line through that point and the largest share keeps to the slip.
    """
    found = model
    share = max(least_share(model, plan.slip, of=plan.reference), plan.shares[0])
    kept: float | None = None
    for _ in range(MOST_TRIES):
        if share >= plan.reference:
            return plan.reference, found
        if share not in points:
            times = _measured(measure, (share, plan.reference), plan.repeats)
            points[share] = _point(model, share, Purpose.CHOSEN, times[share], times[plan.reference])
        if points[share].slip > plan.slip:
            points[share] = _for(points[share], Purpose.TRIED)
            if kept is not None:
                break
            failed = points[share]
            model = through((share, failed.seconds), (plan.reference, failed.seconds / (1 + failed.slip)))
            share = max(share + STEP, least_share(model, plan.slip, of=plan.reference))
            continue
        if kept is not None:
            points[kept] = _for(points[kept], Purpose.KEPT)
        elif any(point.purpose is Purpose.TRIED for point in points.values()):
            return share, found
        kept = share
        refitted = _through(plan, {each: point.seconds for each, point in points.items()}, share)
        if refitted.floor is None:
            break
        model = found = refitted
        share = max(least_share(model, plan.slip, of=plan.reference), plan.shares[0])
        if share > kept - STEP:
            break
    return kept, found


def _for(point: Point, purpose: Purpose) -> Point:
    """Return a point with what it turned out to be for; those that the first model was made of keep that."""
    return point if point.purpose in (Purpose.FIT, Purpose.CHECK) else msgspec.structs.replace(point, purpose=purpose)
