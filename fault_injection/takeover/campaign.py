"""Many schedules, one after the other, on a few worlds at once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final, NamedTuple

from fault_injection.takeover import schedule
from fault_injection.takeover.clients import UnfaithfulError
from fault_injection.takeover.schedule import Schedule
from fault_injection.takeover.world import World

_IN_ONE_WORLD: Final = 125
_LOG_LINES: Final = 40


class Failure(NamedTuple):
    """A schedule with a fault that a client noticed."""

    number: int
    schedule: Schedule
    why: str
    log: str


class Part(NamedTuple):
    """The result of some schedules. After a failure the rest is not run, because it changed their world."""

    done: int
    faults: Counter[str]
    """By what was hit: those that came while a client waited."""
    failure: Failure | None


def run_part(seed: int, indices: Sequence[int]) -> Part:
    """Run some schedules in a world of their own; of two worlds the processes of one have gates."""
    faults: Counter[str] = Counter()
    with World(gated=indices[0] // _IN_ONE_WORLD % 2 == 1) as world:
        for done, index in enumerate(indices):
            plan = schedule.make(seed, index)
            try:
                faults.update(world.run(plan))
            except UnfaithfulError as error:
                log = "\n".join(world.log().splitlines()[-_LOG_LINES:])
                return Part(done, faults, Failure(index, plan, str(error), log))
        world.stop()
    return Part(len(indices), faults, None)


def run(seed: int, indices: Sequence[int], jobs: int) -> Iterator[Part]:
    """Run schedules, on ``jobs`` worlds at a time; each part as it is done."""
    parts = [indices[at : at + _IN_ONE_WORLD] for at in range(0, len(indices), _IN_ONE_WORLD)]
    with ProcessPoolExecutor(jobs) as pool:
        for part in as_completed([pool.submit(run_part, seed, part) for part in parts]):
            yield part.result()
