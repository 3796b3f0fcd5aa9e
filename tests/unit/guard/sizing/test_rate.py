"""The time of a unit of work from a session's counters, and what is too little to be told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.sizing.procedure import NotMeasurableError
from mpsguard.guard.sizing.rate import CounterReading, checked_run_time, least_count, seconds_per_unit


@given(st.integers(25, 10**6), st.floats(0.1, 1e5), st.integers(0, 10**6))
def test_a_rate_is_the_time_between_states(count: int, seconds: float, before: int) -> None:
    first, last = CounterReading(7.0, 1, before), CounterReading(7.0 + seconds, 1, before + count)
    assert seconds_per_unit(first, last, 0.04) == pytest.approx(seconds / count)


def test_of_requests_their_own_time_counts() -> None:
    first, last = CounterReading(0.0, 1, 10, 1.0), CounterReading(10.0, 1, 110, 3.0)
    assert seconds_per_unit(first, last, 0.04) == pytest.approx(0.02)


@given(st.floats(0.001, 0.3))
def test_one_unit_more_is_no_more_than_the_slip(slip: float) -> None:
    assert 1 / least_count(slip) <= slip * 1.2


def test_too_few_units_are_refused() -> None:
    with pytest.raises(NotMeasurableError, match="--seconds"):
        seconds_per_unit(CounterReading(0.0, 1, 0), CounterReading(10.0, 1, 24), 0.04)
    seconds_per_unit(CounterReading(0.0, 1, 0), CounterReading(10.0, 1, 25), 0.04)


@pytest.mark.parametrize("last", [CounterReading(9.0, 2, 500), CounterReading(9.0, 1, 5)])
def test_another_writer_is_refused(last: CounterReading) -> None:
    with pytest.raises(NotMeasurableError, match="writer"):
        seconds_per_unit(CounterReading(0.0, 1, 100), last, 0.04)


@pytest.mark.parametrize("busy", [1.0, 0.5, float("inf"), float("nan")])
def test_requests_that_take_no_time_or_all_of_it_are_refused(busy: float) -> None:
    with pytest.raises(NotMeasurableError, match="wrongly"):
        seconds_per_unit(CounterReading(0.0, 1, 10, 1.0), CounterReading(10.0, 1, 110, busy), 0.04)


def test_a_run_must_be_longer_than_chance() -> None:
    assert checked_run_time(0.26, 0.04) == 0.26
    with pytest.raises(NotMeasurableError, match="too short"):
        checked_run_time(0.24, 0.04)
