"""Time by share: the fit is exact where it was made, and the least share is the least one."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpsguard.guard.sizing.model import TimeModel, least_share, r_squared, through, with_floor

SHARES = st.floats(1, 100)
TIMES = st.floats(1e-5, 1e4)
SLIPS = st.floats(0, 1)
MODELS = st.builds(TimeModel, st.floats(1e-5, 1e3), st.floats(0, 1e3))


@given(SHARES, TIMES, SHARES, TIMES)
def test_the_fit_goes_through_its_points(share: float, seconds: float, other: float, others_seconds: float) -> None:
    assume(abs(share - other) > 0.1)
    model = through((share, seconds), (other, others_seconds))
    tolerance = 1e-6 * (seconds + others_seconds + abs(model.b))
    assert math.isclose(model.seconds(share), seconds, abs_tol=tolerance)
    assert math.isclose(model.seconds(other), others_seconds, abs_tol=tolerance)


@given(MODELS, SHARES, SHARES)
def test_a_law_is_found_again(law: TimeModel, share: float, other: float) -> None:
    assume(abs(share - other) > 1)
    found = through((share, law.seconds(share)), (other, law.seconds(other)))
    size = law.m + law.b
    assert math.isclose(found.m, law.m, abs_tol=1e-6 * size)
    assert math.isclose(found.b, law.b, abs_tol=1e-4 * size)


def test_two_times_at_one_share_are_no_fit() -> None:
    with pytest.raises(ValueError, match="10 %"):
        through((10, 1.0), (10, 2.0))


@given(MODELS, SLIPS, st.floats(2, 100))
def test_the_least_share_keeps_to_the_slip_and_no_smaller_one_does(model: TimeModel, slip: float, of: float) -> None:
    share = least_share(model, slip, of=of)
    allowed = (1 + slip) * model.seconds(of)
    assert 1 <= share <= of
    assert share == of or share == int(share)
    assert model.seconds(share) <= allowed * (1 + 1e-9)
    # A whole percent less would cost more; one that is only a rounding error too slow counts as kept.
    if share > 1:
        less = math.ceil(share) - 1
        assert less == 0 or model.seconds(less) >= allowed * (1 - 1e-9)


@given(MODELS, SLIPS, SLIPS)
def test_more_slip_never_needs_more(model: TimeModel, slip: float, other: float) -> None:
    assert least_share(model, max(slip, other)) <= least_share(model, min(slip, other))


@pytest.mark.parametrize(
    ("model", "slip", "share"),
    [
        (TimeModel(1, 0), 0.04, 97),  # work alone: 1/1.04
        (TimeModel(0.5, 0.5), 0.04, 93),  # 1/1.08 = 92.6
        (TimeModel(0.1, 0.9), 0.04, 72),  # 1/1.4 = 71.4
        (TimeModel(0.1, 0.9), 0.0, 100),
        (TimeModel(0.04, 1.0), 0.04, 50),  # 1/2.04 = 49.02
        (TimeModel(0.0, 1.0), 0.04, 1),
        (TimeModel(-0.1, 1.0), 0.04, 1),
        (TimeModel(1, -0.5), 0.04, 99),  # 1/1.02 = 98.04
    ],
)
def test_the_least_share_by_hand(model: TimeModel, slip: float, share: float) -> None:
    assert least_share(model, slip) == share


@given(MODELS, st.lists(SHARES, min_size=2, max_size=8, unique=True))
def test_what_follows_the_law_is_explained_whole(model: TimeModel, shares: list[float]) -> None:
    assume(max(shares) - min(shares) > 1)
    assume(model.m > 1e-3 * model.b)
    assert r_squared(model, [(share, model.seconds(share)) for share in shares]) > 1 - 1e-9


@given(MODELS, st.lists(st.tuples(SHARES, TIMES), min_size=2, max_size=8))
def test_nothing_is_explained_better_than_whole(model: TimeModel, points: list[tuple[float, float]]) -> None:
    assert r_squared(model, points) <= 1


def test_a_mean_explains_nothing() -> None:
    assert r_squared(TimeModel(0, 2), [(10, 1.0), (50, 2.0), (100, 3.0)]) == 0
    assert r_squared(TimeModel(0, 2), [(10, 2.0), (100, 2.0)]) == 1
    assert r_squared(TimeModel(0, 3), [(10, 2.0), (100, 2.0)]) == 0


H100 = {
    "ResNet-50, batch 8": ({9.1: 7.332, 24.2: 3.532, 50: 2.256, 74.2: 1.933, 100: 1.709}, False),
    "GPT-2, batch 1": ({9.1: 1.986, 24.2: 1.389, 50: 1.033, 100: 0.981}, True),
    "MobileNetV2, batch 1": ({9.1: 0.917, 50: 0.653, 74.2: 0.585, 100: 0.583}, False),
}
"""Milliseconds of a request by share, measured on one H100 (580.159.04; 12, 32, 66, 98 and 132 SMs)."""


@pytest.mark.parametrize("name", H100)
def test_three_points_of_real_programs_say_whether_there_is_a_floor(name: str) -> None:
    measured, has_floor = H100[name]
    model = with_floor((9.1, measured[9.1]), (50, measured[50]), (100, measured[100]), beyond=0.02)
    assert (model.floor is not None) is has_floor
    assert r_squared(model, list(measured.items())) >= 0.97
    assert model.seconds(100) == pytest.approx(measured[100])


@given(MODELS, st.floats(1.01, 9), SLIPS)
def test_the_least_share_with_a_floor_keeps_to_the_slip(line: TimeModel, above: float, slip: float) -> None:
    model = TimeModel(line.m, line.b, line.seconds(100) * above)
    share = least_share(model, slip)
    assert model.seconds(share) <= (1 + slip) * model.seconds(100) * (1 + 1e-9)
    less = share - 1
    assert less < 1 or model.seconds(less) >= (1 + slip) * model.seconds(100) * (1 - 1e-9)
