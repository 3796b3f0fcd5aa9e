"""The steps of right-sizing, with laws in the place of programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.sizing.model import TimeModel
from mpsguard.guard.sizing.procedure import MOST_TRIES, NotMeasurableError, Purpose, SizingPlan, rounds, size

PLAN = SizingPlan((10.0, 50.0, 100.0), 0.04, 3)
LAWS = st.builds(TimeModel, st.floats(1e-4, 10), st.floats(0, 10))


class Program:
    """What is measured: a law, and a record of the shares."""

    def __init__(self, law: Callable[[float], float]) -> None:
        self._law = law
        self.asked: list[float] = []

    def __call__(self, share: float) -> float:
        self.asked.append(share)
        return self._law(share)


@given(st.lists(st.floats(1, 100), min_size=1, max_size=5, unique=True), st.integers(1, 6))
def test_rounds_give_each_share_its_repeats(shares: list[float], repeats: int) -> None:
    order = list(rounds(shares, repeats))
    assert Counter(order) == dict.fromkeys(shares, repeats)
    # Interleaved: every share once before any comes again.
    size = len(shares)
    assert all(set(order[at : at + size]) == set(shares) for at in range(0, len(order), size))


@given(st.integers(1, 10))
def test_a_steady_drift_weighs_on_all_shares_alike(pairs: int) -> None:
    """In an even number of rounds: their order turns round after each."""
    places = dict.fromkeys(PLAN.shares, 0)
    for at, share in enumerate(rounds(PLAN.shares, 2 * pairs)):
        places[share] += at
    assert len(set(places.values())) == 1


@given(LAWS)
def test_a_program_that_follows_the_law_gets_the_predicted_share(law: TimeModel) -> None:
    program = Program(law.seconds)
    found = size(program, PLAN)
    assert found.problem is None
    assert found.chosen is not None
    assert found.chosen.slip <= PLAN.slip + 1e-9
    assert abs(found.chosen.error) < 1e-6
    assert found.r_squared is None or found.r_squared > 1 - 1e-6
    assert [point.share for point in found.points] == sorted({*PLAN.shares, found.chosen.share})
    # The chosen share, and the one that it is compared with, in rounds of their own.
    assert len(program.asked) <= 9 + 6


def test_points_say_what_they_were_measured_for() -> None:
    found = size(TimeModel(0.1, 0.9).seconds, PLAN)
    assert {point.share: point.purpose for point in found.points} == {
        10: Purpose.FIT,
        50: Purpose.CHECK,
        72: Purpose.CHOSEN,
        100: Purpose.FIT,
    }
    assert found.share == 72


def test_the_median_counts() -> None:
    turns = iter((1.0, 0.9, 5.0))
    found = size(lambda share: next(turns, 1.0) if share == 100 else TimeModel(0.1, 0.9).seconds(share), PLAN)
    whole = next(point for point in found.points if point.share == 100)
    assert (whole.seconds, whole.times) == (1.0, (1.0, 0.9, 5.0))
    assert whole.spread == pytest.approx(4.1)


def test_a_program_that_needs_no_sms_gets_the_smallest_measured_share() -> None:
    program = Program(lambda _: 1.0)
    found = size(program, PLAN)
    assert (found.share, found.r_squared, found.problem) == (10, None, None)
    assert len(program.asked) == 9


@pytest.mark.parametrize("least", [0.97, 1.03])
def test_a_difference_below_the_slip_is_none(least: float) -> None:
    assert size(lambda share: least if share == 10 else 1.0, PLAN).share == 10


def test_a_time_that_rises_with_the_share_is_no_fit() -> None:
    found = size(lambda share: 1 + share / 100, PLAN)
    assert found.share is None
    assert found.problem is not None
    assert "does not fall" in found.problem
    assert len(found.points) == 3


def test_times_that_follow_another_law_are_no_fit() -> None:
    program = Program({10.0: 2.0, 50.0: 4.0, 100.0: 1.0}.__getitem__)
    found = size(program, PLAN)
    assert found.share is None
    assert found.problem is not None
    assert found.r_squared is not None
    assert found.r_squared < 0
    assert len(program.asked) == 9


def test_a_share_that_does_not_keep_its_promise_gives_way_to_the_next_larger() -> None:
    law = TimeModel(0.1, 0.9)
    found = size(lambda share: law.seconds(share) * (1.005 if 72 <= share < 77 else 1), PLAN)
    assert found.share == 77
    assert [point.purpose for point in found.points] == [
        Purpose.FIT, Purpose.CHECK, Purpose.TRIED, Purpose.CHOSEN, Purpose.FIT,
    ]  # fmt: skip
    tried = found.points[2]
    assert tried.slip > PLAN.slip
    assert tried.error == pytest.approx(1 / 1.005 - 1)


def test_a_time_that_is_steeper_near_the_end_is_found_at_the_second_try() -> None:
    """As of GPT-2 at batch 4 (H100): 62 %, which was predicted, costs more than the slip, and so do 67, 72 and 77 %."""
    steep = TimeModel(0.15, 0.85)
    found = size(lambda share: min(steep.seconds(share), 1.587), PLAN)
    assert found.share == 79
    assert found.chosen is not None
    assert abs(found.chosen.error) < 1e-6
    assert sum(point.purpose is Purpose.TRIED for point in found.points) == 1


def test_tries_are_bounded() -> None:
    """Each try costs nearly as little more as is needed for one more."""
    law = TimeModel(0.1, 0.9)
    whole = law.seconds(100)
    program = Program(lambda share: whole * 1.05 if 50 < share < 100 else law.seconds(share))
    found = size(program, PLAN)
    assert sum(point.purpose is Purpose.TRIED for point in found.points) <= MOST_TRIES
    assert len(program.asked) <= 9 + MOST_TRIES * 6


def test_a_program_that_needs_everything_is_told_so() -> None:
    law = TimeModel(1, 0)
    found = size(lambda share: law.seconds(share) * (1.2 if 50 < share < 100 else 1), PLAN)
    assert (found.share, found.problem) == (100, None)


def test_shares_are_compared_with_the_largest_one() -> None:
    found = size(TimeModel(0.1, 0.9).seconds, SizingPlan((10.0, 30.0, 60.0), 0.04, 1))
    assert found.chosen is not None
    assert found.share == 48  # 0.1/t + 0.9 <= 1.04 * (0.1/0.6 + 0.9)
    assert found.chosen.slip <= 0.04


@given(st.floats(12, 48), st.floats(0.2, 3), st.floats(0, 0.005))
def test_a_time_that_is_flat_from_some_share_on_is_found(knee: float, rise: float, noise: float) -> None:
    """All blocks fit in ``knee`` percent; below it the time rises by ``rise`` up to 10 %."""
    m = rise / (100 / 10 - 100 / knee)
    law = TimeModel(m, 1 - m * 100 / knee, floor=1.0)
    found = size(lambda share: law.seconds(share) * (1 - noise if share == 50 else 1), PLAN)
    assert found.chosen is not None
    assert found.chosen.share < 50
    assert found.chosen.slip <= PLAN.slip
    assert abs(found.chosen.error) <= 0.05
    assert found.r_squared is not None
    assert found.r_squared > 0.9
    assert sum(point.purpose in (Purpose.TRIED, Purpose.KEPT, Purpose.CHOSEN) for point in found.points) <= MOST_TRIES


def test_a_share_that_keeps_with_much_to_spare_leads_to_a_smaller_one() -> None:
    law = TimeModel(0.1, 0.5, floor=1.0)  # flat from 20 % on, 1.5 at 10 %
    found = size(law.seconds, PLAN)
    assert found.share is not None
    assert 19 <= found.share < 35
    kept = [point.share for point in found.points if point.purpose is Purpose.KEPT]
    assert kept
    assert min(kept) > found.share
    assert found.model.floor == 1.0


def test_one_that_is_tried_after_it_and_does_not_keep_leaves_it_chosen() -> None:
    found = size(lambda share: 1.5 if share == 10 else 1.0 if share >= 34 else 1.2, PLAN)
    assert found.share is not None
    assert found.share >= 34
    assert [point.share for point in found.points if point.purpose is Purpose.TRIED]


def test_what_cannot_be_measured_ends_it() -> None:
    def measure(share: float) -> float:
        raise NotMeasurableError("too short")

    with pytest.raises(NotMeasurableError, match="too short"):
        size(measure, PLAN)
