"""Slots of the arena: each is free or one image's, whatever is taken and given back in whatever order."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from mpsguard.images.pool import arena_slots
from mpsguard.images.pool.arena_slots import Run

SLOTS = 24


def slots(runs: tuple[Run, ...]) -> list[int]:
    return [slot for run in runs for slot in range(run.first, run.first + run.count)]


@given(st.lists(st.integers(1, 9) | st.integers(-9, -1), max_size=60))
def test_each_slot_is_free_or_has_one_owner(steps: list[int]) -> None:
    """A positive number takes so many slots, a negative one gives the image at that place back."""
    free: tuple[Run, ...] = (Run(0, SLOTS),)
    images: list[tuple[Run, ...]] = []
    for step in steps:
        if 0 < step <= len(slots(free)):
            taken, free = arena_slots.take(free, step)
            assert len(slots(taken)) == step
            images.append(taken)
        elif step < 0 and -step <= len(images):
            free = arena_slots.give(free, images.pop(-step - 1))
        assert sorted(slots(free) + [slot for image in images for slot in slots(image)]) == list(range(SLOTS))
        assert all(one.first + one.count < other.first for one, other in pairwise(free))


def test_the_largest_runs_are_taken_first() -> None:
    free = (Run(0, 2), Run(5, 8), Run(20, 3))
    assert arena_slots.take(free, 9) == ((Run(5, 8), Run(20, 1)), (Run(0, 2), Run(21, 2)))
