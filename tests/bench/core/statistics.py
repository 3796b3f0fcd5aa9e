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
