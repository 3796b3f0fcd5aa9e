"""Paired comparisons, and percentiles."""

import pytest

from tests.bench.core.statistics import alternating, differences, percentile, ratios


def test_pairs_cancel_a_common_drift() -> None:
    stock = [100.0, 200.0, 400.0]
    guard = [101.0, 201.0, 401.0]
    assert differences(guard, stock) == [1.0, 1.0, 1.0]
    assert ratios([50.0, 99.0], [100.0, 100.0]) == [0.5, 0.99]


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="argument"):
        differences([1.0], [1.0, 2.0])


def test_order_is_abba() -> None:
    assert list(alternating(4)) == [(True, False), (False, True), (True, False), (False, True)]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.75, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_a_percentile_is_the_smallest_sample_that_so_many_do_not_exceed(share: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == expected
