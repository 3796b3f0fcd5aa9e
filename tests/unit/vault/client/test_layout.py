"""Where regions are placed, and of which chunks they consist."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.vault.client.mapped.layout import (
    FIRST,
    LAST,
    STEP,
    NoRoomError,
    Range,
    chunk_sizes,
    pieces,
    place,
    rounded,
)

GRANULARITIES = st.sampled_from([4096, 65536, 2 << 20])


@given(st.integers(1, 1 << 40), GRANULARITIES, st.none() | st.integers(1 << 30, 1 << 41))
def test_chunks_hold_what_was_asked_for_and_no_unit_more(size: int, granularity: int, largest: int | None) -> None:
    sizes = chunk_sizes(size, granularity, largest)
    assert size <= sum(sizes) < size + granularity
    assert all(length > 0 and length % granularity == 0 for length in sizes)
    if largest is None:
        assert len(sizes) == 1
    else:
        assert max(sizes) <= largest
        assert len(set(sizes[:-1])) <= 1


def test_a_chunk_is_never_smaller_than_a_unit() -> None:
    assert chunk_sizes(10000, 4096, 1) == (4096, 4096, 4096)


@pytest.mark.parametrize(("size", "largest"), [(0, None), (-1, None), (1, 0)])
def test_nothing_cannot_be_laid_out(size: int, largest: int | None) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        chunk_sizes(size, 4096, largest)


@given(st.integers(0, 1 << 47), st.lists(st.integers(1, 1 << 30), max_size=20))
def test_pieces_lie_one_behind_the_other(va: int, sizes: list[int]) -> None:
    assert [(start, size) for start, size in pieces(va, sizes)] == [
        (va + sum(sizes[:index]), size) for index, size in enumerate(sizes)
    ]


SIZES = st.integers(1, 64 << 30)


@given(st.lists(SIZES, min_size=1, max_size=30), st.randoms())
def test_regions_never_touch_each_other_whatever_is_released_in_between(sizes: list[int], chance: object) -> None:
    taken: list[Range] = []
    for size in sizes:
        at = place(size, taken)
        assert at >= FIRST
        assert at + size <= LAST
        assert at % STEP == 0
        assert all(at + size <= start or at >= end for start, end in taken)
        taken.append(Range(at, at + size))
        if chance.random() < 0.3:  # type: ignore[attr-defined]
            taken.pop(chance.randrange(len(taken)))  # type: ignore[attr-defined]


def test_the_lowest_gap_is_taken() -> None:
    first, third = Range(FIRST, FIRST + STEP), Range(FIRST + 2 * STEP, FIRST + 3 * STEP)
    assert place(STEP, [third, first]) == FIRST + STEP
    assert place(STEP + 1, [third, first]) == FIRST + 3 * STEP


def test_ranges_may_overlap_and_lie_elsewhere() -> None:
    assert place(1, [Range(0, 4096), Range(FIRST, FIRST + 10), Range(FIRST, FIRST + 3 * STEP)]) == FIRST + 3 * STEP


def test_there_is_an_end() -> None:
    assert place(LAST - FIRST, []) == FIRST
    with pytest.raises(NoRoomError):
        place(LAST - FIRST + 1, [])
    with pytest.raises(NoRoomError):
        place(1, [Range(FIRST, LAST)])


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 30))
def test_rounding_goes_up_to_the_next_multiple(size: int, unit: int) -> None:
    assert size <= rounded(size, unit) < size + unit
    assert rounded(size, unit) % unit == 0
