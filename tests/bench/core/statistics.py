"""Paired comparisons, in which what drifts slowly (clocks, heat) weighs on both sides alike; percentiles."""

import math
from collections.abc import Iterator, Sequence


def differences(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Ours minus the peer, pair by pair."""
    return [mine - theirs for mine, theirs in zip(ours, peer, strict=True)]


def ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Ours over the peer, pair by pair."""
    return [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]


def alternating(pairs: int) -> Iterator[tuple[bool, bool]]:
    """For each pair, whether ours runs (first, second): ABBA, so that neither side always comes first."""
    for index in range(pairs):
        ours_first = index % 2 == 0
        yield ours_first, not ours_first


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of all do not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, by ranks: it asks nothing of how the samples are spread."""
    ordered, half = sorted(samples), 0.98 * math.sqrt(len(samples))
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, math.floor(middle - half))], ordered[min(len(ordered) - 1, math.ceil(middle + half))]
