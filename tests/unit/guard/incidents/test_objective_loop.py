"""Which session decides on an objective."""

import pytest

from mpsguard.guard.incidents.objective_loop import WorstSession
from mpsguard.vault.wire.latency_counts import BOUNDS, LatencyCounts, bucket_of
from mpsguard.vault.wire.region import SessionKey

SLOW, FAST, OTHER = SessionKey(1001, "slow"), SessionKey(1002, "fast"), SessionKey(1003, "other")


def requests(count: int, seconds: float) -> LatencyCounts:
    counts = [0] * (len(BOUNDS) + 1)
    counts[bucket_of(seconds)] = count
    return LatencyCounts(tuple(counts), count * seconds)


def test_many_short_requests_of_one_session_hide_no_slow_ones_of_another() -> None:
    judge = WorstSession(200)
    judge.add(FAST, requests(1_000_000, 0.001))
    judge.add(SLOW, requests(200, 0.050))
    found = judge.result()
    assert (found.session, found.requests) == (SLOW, 200)
    assert found.p99 == pytest.approx(0.050, rel=0.02)


def test_a_session_with_few_requests_does_not_decide_alone() -> None:
    judge = WorstSession(200)
    judge.add(FAST, requests(1000, 0.001))
    judge.add(SLOW, requests(199, 0.050))
    assert judge.result().session == FAST


def test_several_with_few_requests_decide_together() -> None:
    judge = WorstSession(200)
    judge.add(FAST, requests(1000, 0.001))
    judge.add(SLOW, requests(100, 0.050))
    judge.add(OTHER, requests(100, 0.050))
    found = judge.result()
    assert (found.session, found.requests) == (None, 200)
    assert found.p99 == pytest.approx(0.050, rel=0.02)


def test_too_few_requests_are_still_told() -> None:
    judge = WorstSession(200)
    judge.add(SLOW, requests(3, 0.050))
    assert judge.result()[:2] == (None, 3)
    assert WorstSession(200).result() == (None, 0, None)
