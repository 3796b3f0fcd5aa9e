"""How often something may happen, and how long what fails waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.linux.pacing import LONGEST_RESTART, BurstLimit, backoff, restart_delay


@given(st.integers(1, 10), st.floats(0.5, 100), st.lists(st.floats(0, 50), max_size=60))
def test_never_more_than_the_burst_within_any_window(burst: int, window: float, pauses: list[float]) -> None:
    limit = BurstLimit(burst, window)
    now, happened = 0.0, []
    for pause in pauses:
        now += pause
        if limit.wait(now) == 0:
            limit.happened(now)
            happened.append(now)
    for start in happened:
        assert sum(start <= at < start + window for at in happened) <= burst


@given(st.integers(0, 100_000), st.floats(0.5, 86400))
def test_what_fails_for_days_is_tried_again_for_days(failures: int, longest: float) -> None:
    wait = backoff(failures, 0.25, longest)
    assert 0.25 <= wait <= longest
    assert wait == longest or wait == 2 * backoff(failures - 1, 0.25, longest) or failures == 0


def test_after_the_wait_it_may_happen_again() -> None:
    limit = BurstLimit(2, 10.0)
    limit.happened(0.0)
    limit.happened(4.0)
    assert limit.wait(5.0) == 5.0
    assert limit.wait(10.0) == 0.0


@pytest.mark.parametrize(
    ("deaths", "seconds"), [(0, 0.0), (1, 0.0), (2, 0.25), (3, 0.5), (4, 1.0), (100, LONGEST_RESTART)]
)
def test_the_first_death_costs_no_time_and_later_ones_more_and_more(deaths: int, seconds: float) -> None:
    assert restart_delay(deaths) == seconds
