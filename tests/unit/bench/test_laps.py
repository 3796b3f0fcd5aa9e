"""The order of the starts in the suite `start`: all samples, few laps, and something of each figure soon."""

from collections import Counter

import pytest

from tests.bench.start.laps import Figure, Step, known, next_lap, pins, shortage, steps, workers_for


def laps(todo: list[Step], workers: int) -> list[list[Step]]:
    made = []
    while todo:
        lap, todo = next_lap(todo, workers)
        assert lap, "a step that no lap has room for"
        made.append(lap)
    return made


def samples(made: list[Step]) -> Counter[Figure]:
    found: Counter[Figure] = Counter()
    for step in made:
        if step.figure is Figure.MEMORY:
            found[Figure.AT_ONCE] += step.workers - 1
        if step.figure is not None:
            found[step.figure] += step.workers if step.figure is Figure.AT_ONCE else 1
    return found


@pytest.mark.parametrize(("rounds", "instances"), [(20, 8), (1, 2)])
@pytest.mark.parametrize("processors", [1, 2, 16, 128])
def test_each_figure_has_its_samples_whatever_the_machine(rounds: int, instances: int, processors: int) -> None:
    workers = workers_for(instances, processors)
    todo = steps(rounds, instances, workers)
    made = laps(todo, workers)
    assert [step for lap in made for step in lap] == todo
    assert max(sum(step.workers for step in lap) for lap in made) <= workers
    found = samples(todo)
    assert [found[figure] for figure in (Figure.PINNED, Figure.DEMAND, Figure.GPU)] == [rounds] * 3
    assert found[Figure.AT_ONCE] >= rounds
    assert found[Figure.MEMORY] == 1


@pytest.mark.parametrize("processors", [1, 16])
def test_two_laps_have_samples_of_each_figure_and_the_first_one_pins_nothing(processors: int) -> None:
    workers = workers_for(8, processors)
    first, second, *_ = laps(steps(20, 8, workers), workers)
    assert set(samples(first)) == {Figure.MEMORY, Figure.AT_ONCE, Figure.GPU}
    assert set(samples([*first, *second])) == set(Figure)
    assert not pins(first)


def test_sixteen_processors_need_six_laps_three_of_them_without_pinned_memory() -> None:
    made = laps(steps(20, 8, workers_for(8, 16)), 16)
    assert [pins(lap) for lap in made] == [False, True, True, True, False, False]


def test_a_lap_pins_if_one_of_its_starts_copies_from_pinned_memory() -> None:
    assert not pins([Step(Figure.GPU, "gpu"), Step(Figure.AT_ONCE, "gpu", 8)])
    assert pins([Step(Figure.GPU, "gpu"), Step(Figure.DEMAND, "demand")])
    assert pins([Step(None, "demand")])


def test_a_figure_is_known_when_no_step_has_more_of_it() -> None:
    memory, gpu = Step(Figure.MEMORY, "gpu", 9), Step(Figure.GPU, "gpu")
    assert not known(Figure.AT_ONCE, [memory])
    assert known(Figure.AT_ONCE, [gpu])
    assert not known(Figure.GPU, [memory, gpu])
    assert known(Figure.MEMORY, [gpu])


def test_a_part_is_begun_once_with_any_time_and_again_if_it_would_be_done() -> None:
    assert shortage(0.5, 0.0, "a batch") is None
    assert shortage(20.0, 15.0, "a batch") is None
    assert shortage(14.0, 15.0, "a batch") == "14 s are left, and a batch takes 15 s"
    assert shortage(0.0, 0.0, "a batch") == "no time is left for a batch"
