"""What the suite `checkpoint` makes of its programs' events."""

from tests.bench.checkpoint import cotenant, serving, training
from tests.bench.core.events import Event


def event(name: str, at: float, **members: object) -> Event:
    return Event(name, 1, at, at, members)


def test_a_checkpoints_longest_step_and_throughput_are_those_beyond_its_own_neighbours() -> None:
    made = event("checkpoint", 10.0, alone=[0.1, 0.1, 0.3], steps=[0.14, 0.1, 0.12])
    assert round(training._extra(made), 6) == 40.0
    assert round(training._kept(made), 6) == round(0.1 / 0.12, 6)


def test_a_neighbours_rate_is_that_of_the_windows_that_lie_within_a_checkpoint() -> None:
    # Steps without a checkpoint from 8.0 to 9.0, then a pause, and a checkpoint from 9.5 to 10.5, told later.
    made = event("checkpoint", 11.0, alone=[0.5, 0.5], steps=[0.5, 0.5], alone_began=8.0, began=9.5)
    windows = event(
        "windows",
        11.0,
        windows=[(7.9, 0.2, 1000), (8.1, 0.2, 40), (8.5, 0.2, 40), (9.1, 0.2, 1000), (9.6, 0.2, 30), (10.4, 0.2, 1000)],
    )
    assert [round(rate, 6) for rate in cotenant._rates(windows, [made], "steps")] == [0.75]
    assert cotenant._rates(event("windows", 1.0, windows=[]), [made], "steps") == []


def test_a_servers_longest_gap_is_told_beyond_its_median() -> None:
    made = event("gaps", 1.0, alone=[0.002, 0.002, 0.010], during=[0.002, 0.005])
    assert round(serving._longest(made), 6) == 3.0
