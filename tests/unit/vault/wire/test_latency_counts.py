"""The histogram of latencies: what a reader makes of it, whatever it finds."""

import itertools
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.client import LayoutMismatchError
from mpsguard.vault.wire.latency_counts import (
    BOUNDS,
    FIRST_COUNT,
    HEADER,
    LAYOUT,
    SIZE,
    TOTAL_WORD,
    LatencyCounts,
    bucket_of,
    check_layout,
    decoded_counts,
)
from mpsguard.vault.wire.region import RegionLayout

WORDS = FIRST_COUNT + len(BOUNDS) + 1
NONE = LatencyCounts((0,) * (len(BOUNDS) + 1), 0.0)
latencies = st.floats(1e-6, 200.0)


def counted(seconds: list[float]) -> LatencyCounts:
    counts = [0] * (len(BOUNDS) + 1)
    for each in seconds:
        counts[bucket_of(each)] += 1
    return LatencyCounts(tuple(counts), sum(seconds))


def test_the_buckets_are_fine_from_10_us_to_100_s() -> None:
    assert BOUNDS[0] == pytest.approx(1e-5)
    assert BOUNDS[-1] == pytest.approx(100.0)
    assert all(1.0 < upper / lower <= 1.0201 for lower, upper in itertools.pairwise(BOUNDS))
    assert bucket_of(0.0) == 0
    assert bucket_of(BOUNDS[7]) == 7
    assert bucket_of(math.inf) == len(BOUNDS)
    assert WORDS * 8 <= SIZE


@given(seconds=st.lists(latencies, min_size=1, max_size=200), fraction=st.floats(0.0, 1.0))
def test_a_percentile_is_that_of_the_sorted_latencies_to_a_bucket(seconds: list[float], fraction: float) -> None:
    found = counted(seconds).percentile(fraction)
    exact = sorted(seconds)[max(math.ceil(fraction * len(seconds)) - 1, 0)]
    assert found is not None
    if exact > BOUNDS[-1]:
        assert found == BOUNDS[-1]
    elif exact <= BOUNDS[0]:
        assert 0 <= found <= BOUNDS[0]
    else:
        assert found == pytest.approx(exact, rel=0.021)


def test_without_requests_there_is_no_percentile() -> None:
    assert NONE.percentile(0.99) is None
    assert NONE.requests() == 0
    assert counted([0.1]).percentile(0.5, since=counted([0.1])) is None


@given(before=st.lists(latencies, max_size=50), after=st.lists(latencies, min_size=1, max_size=50))
def test_a_window_is_what_came_after_an_earlier_reading(before: list[float], after: list[float]) -> None:
    earlier, later = counted(before), counted(before + after)
    assert later.requests(since=earlier) == len(after)
    assert later.percentile(0.99, since=earlier) == counted(after).percentile(0.99)


def test_a_session_that_began_anew_has_no_negative_window() -> None:
    assert counted([0.2]).requests(since=counted([0.1, 0.1])) == 1


@given(
    rest=st.sampled_from([0, 1, 2**64 - 1]),
    some=st.dictionaries(st.integers(1, WORDS - 1), st.integers(0, 2**64 - 1), max_size=8),
    fraction=st.floats(0.0, 1.0),
)
def test_any_numbers_are_read(rest: int, some: dict[int, int], fraction: float) -> None:
    words = [some.get(word, rest) for word in range(1, WORDS)]
    found = decoded_counts(HEADER + struct.pack(f"={WORDS - 1}Q", *words))
    assert found is not None
    assert found.total_seconds == words[TOTAL_WORD - 1] / 1e9
    assert found.requests() >= found.requests(since=found) == 0
    percentile = found.percentile(fraction)
    assert (percentile is None) == (found.requests() == 0)
    assert percentile is None or 0 <= percentile <= BOUNDS[-1]


@given(content=st.binary(max_size=100) | st.just(bytes(WORDS * 8)))
def test_other_content_is_no_histogram(content: bytes) -> None:
    assert decoded_counts(content) is None


@pytest.mark.parametrize(
    "layout",
    [
        RegionLayout((SIZE - 4096,)),
        RegionLayout((SIZE, SIZE)),
        RegionLayout((SIZE,), gpu="GPU-00000000-0000-0000-0000-000000000001"),
    ],
)
def test_only_the_own_layout_is_mapped(layout: RegionLayout) -> None:
    check_layout(LAYOUT)
    with pytest.raises(LayoutMismatchError):
        check_layout(layout)
