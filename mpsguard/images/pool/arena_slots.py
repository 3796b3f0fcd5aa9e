"""Decides where in the arena an image lies: in slots of one piece each, in as few runs of them as there can be."""

from typing import Annotated

import msgspec
from msgspec import Meta

Slot = Annotated[int, Meta(ge=0, lt=1 << 32)]


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive slots."""

    first: Slot
    count: Annotated[int, Meta(ge=1, lt=1 << 32)]


def take(free: tuple[Run, ...], count: int) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """Return ``count`` slots of those that are free, the largest runs first, and what stays free.

    ``free``: disjoint runs in ascending order, with ``count`` slots or more.
    """
    taken: list[Run] = []
    for run in sorted(free, key=lambda run: (-run.count, run.first)):
        if not count:
            break
        taken.append(Run(run.first, min(run.count, count)))
        count -= taken[-1].count
    assert not count
    used = {run.first: run.count for run in taken}
    left = (Run(run.first + used.get(run.first, 0), run.count - used.get(run.first, 0)) for run in free)
    return tuple(taken), tuple(run for run in left if run.count)


def give(free: tuple[Run, ...], back: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the free runs, in ascending order and joined, after some came back."""
    joined: list[Run] = []
    for run in sorted((*free, *back), key=lambda run: run.first):
        if joined and joined[-1].first + joined[-1].count == run.first:
            joined[-1] = Run(joined[-1].first, joined[-1].count + run.count)
        else:
            joined.append(run)
    return tuple(joined)
