"""What the events of a training loop say: whether it computed what it would have, and where it resumed."""

from typing import Any

import pytest

from tests.bench.failover.training import losses, resumptions, wrong


def promoted(pid: int, step: int) -> dict[str, Any]:
    return {"event": "promoted", "pid": pid, "step": step, "loss": loss(step) if step else None}


def step(pid: int, number: int, value: float | None = None) -> dict[str, Any]:
    return {"event": "step", "pid": pid, "step": number, "loss": loss(number) if value is None else value}


def loss(number: int) -> float:
    return 1.0 / number


UNDISTURBED = losses([promoted(9, 0), *(step(9, number) for number in range(1, 20))])
TOLD = [promoted(1, 0), step(1, 1), step(1, 2), promoted(2, 2), step(2, 3)]
UNTOLD = [promoted(1, 0), step(1, 1), step(1, 2), promoted(2, 3), step(2, 4), promoted(3, 4)]
"""The first process died between a publication and its event, the second one before its next step."""


@pytest.mark.parametrize("events", [TOLD, UNTOLD])
def test_steps_that_are_as_undisturbed_are_right(events: list[dict[str, Any]]) -> None:
    assert wrong(losses(events), UNDISTURBED) == []


@pytest.mark.parametrize(
    ("events", "which"),
    [
        ([promoted(1, 0), step(1, 1), promoted(2, 1), step(2, 3)], "step 2 is missing"),
        ([promoted(1, 0), step(1, 1), step(1, 2, 0.25)], "step 2: {0.25}"),
        # Made twice, with two results: the second one from a state that was not whole.
        ([promoted(1, 0), step(1, 1), step(1, 2, 0.125), promoted(2, 1), step(2, 2)], "step 2: {0."),
        ([step(1, number) for number in range(1, 21)], "step 20: {0.05}, undisturbed None"),
    ],
)
def test_a_step_that_is_not_is_named(events: list[dict[str, Any]], which: str) -> None:
    (found,) = wrong(losses(events), UNDISTURBED)
    assert found.startswith(which)


def test_where_each_standby_resumed_stands_beside_what_its_predecessor_reported() -> None:
    assert resumptions(TOLD) == [(2, 2)]
    assert resumptions(UNTOLD) == [(2, 3), (4, 4)]
    assert resumptions([promoted(1, 0), step(1, 1), step(1, 2), promoted(2, 1)]) == [(2, 1)]
