"""The order of the starts: a lap uses up the workers that wait, and the next one begins when others are prepared."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Figure(StrEnum):
    """What starts are samples of."""

    MEMORY = "memory"
    """GPU memory of one instance, and of several more, which are started at once."""
    PINNED = "pinned"
    DEMAND = "demand"
    GPU = "gpu"
    AT_ONCE = "at once"


class Step(NamedTuple):
    """Starts that belong together, each by a worker of its own, in one lap."""

    figure: Figure | None
    """None: they do not count, and bring to its place what the others need."""
    how: str
    """What the workers are asked for."""
    workers: int = 1


def steps(rounds: int, instances: int, workers: int) -> list[Step]:
    """Return all steps, for ``rounds`` samples of each figure, with ``workers`` of them in a lap.

    The first lap is one of memory on the GPU alone, and the second one begins with a sample of each other figure: there
    may be time for no others. Steps that copy from pinned memory follow one another, so that other laps have workers
    that pin nothing, which are prepared sooner.
    """
    # The first start brings the image to the GPU, and the first one on demand records the image's profile.
    bring = Step(None, "gpu")
    first = [bring, Step(Figure.MEMORY, "gpu", 1 + instances)]
    gpu, pinned, demand = Step(Figure.GPU, "gpu"), Step(Figure.PINNED, "pinned"), Step(Figure.DEMAND, "demand")
    early = min(rounds, workers - sum(step.workers for step in first))
    at_once = -(-rounds // instances) - 1  # the step for memory is one, too
    return [
        *first,
        *[gpu] * early,
        *[pinned, Step(None, "demand"), demand],
        *[pinned] * (rounds - 1),
        *[demand] * (rounds - 1),
        bring,  # the image may have left the GPU meanwhile: it is idle in the laps of the others
        *[gpu] * (rounds - early),
        *[Step(Figure.AT_ONCE, "gpu", instances)] * at_once,
    ]


def workers_for(instances: int, processors: int) -> int:
    """Return how many workers wait: most of a preparation are imports, one processor's work."""
    return max(3 + instances, min(2 * instances, processors))


def next_lap(todo: Sequence[Step], workers: int) -> tuple[list[Step], list[Step]]:
    """Return the first steps, as many as there are workers for, and the others."""
    end, used = 0, 0
    while end < len(todo) and used + todo[end].workers <= workers:
        used += todo[end].workers
        end += 1
    return list(todo[:end]), list(todo[end:])


def known(figure: Figure, todo: Sequence[Step]) -> bool:
    """Return whether no step that is still to be made has samples of a figure."""
    makers = {figure, Figure.MEMORY} if figure is Figure.AT_ONCE else {figure}
    return all(step.figure not in makers for step in todo)


def pins(lap: Sequence[Step]) -> bool:
    """Return whether a worker of the lap copies from pinned memory."""
    return any(step.how != "gpu" for step in lap)


def shortage(left: float, last: float, what: str) -> str | None:
    """Return why ``what`` is not begun, if ``left`` seconds are not enough; None if they are.

    Args:
        left: seconds.
        last: seconds that the one before took; 0: there was none, and any time that is left is enough.
        what: in words.
    """
    if left > last:
        return None
    return f"{left:.0f} s are left, and {what} takes {last:.0f} s" if last else f"no time is left for {what}"
