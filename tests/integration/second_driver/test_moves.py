"""A program is moved without a fault: it goes on in the second driver, or on the first one as if nothing had been."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integration.second_driver.bench import Bench

pytestmark = pytest.mark.slow(seconds=60, reason="compiles the preload, and runs many schedules of threads and moves")

MODES = ["cold", "hot"]
AHEAD = [
    ("cuInit", 1),
    ("cuDevicePrimaryCtxRetain", 1),
    ("cuMemAddressReserve", 1),
    ("cuModuleLoadDataEx", 1),
    ("cuModuleGetFunction", 2),
    ("cuStreamCreateWithPriority", 3),
    ("cuEventCreate", 1),
]
"""Calls of the second driver while the program runs, by name and the number of the one that fails."""
STOPPED = [
    ("cuMemImportFromShareableHandle", 1),
    ("cuMemMap", 2),
    ("cuMemSetAccess", 3),
    ("cuMemHostRegister_v2", 2),
    ("cuCtxSynchronize", 1),
    ("cuMemcpyHtoDAsync_v2", 1),
    ("cuMemcpyDtoH_v2", 2),
    ("cuGraphInstantiateWithFlags", 1),
]
"""The same while it waits."""


@pytest.mark.parametrize("mode", MODES)
def test_a_program_moves_while_it_works(built: Bench, tmp_path: Path, mode: str) -> None:
    ended = built.run(tmp_path, mode, 2, threads=4, operations=200, when="move")
    assert ended.said == "survived without a fault"
    assert [each["outcome"] for each in ended.attempts] == ["moved"]


@pytest.mark.parametrize("mode", MODES)
def test_the_old_driver_may_answer_nothing_any_more(built: Bench, tmp_path: Path, mode: str) -> None:
    """Its server has ended the client."""
    ended = built.run(tmp_path, mode, 5, threads=4, operations=200, when="move", ENDED_AFTERWARDS="1")
    assert ended.said == "survived without a fault"
    assert [each["outcome"] for each in ended.attempts] == ["moved"]


def test_a_limit_that_is_set_meanwhile_is_carried_over(built: Bench, tmp_path: Path) -> None:
    ended = built.case(tmp_path, "cold", "limit_in_a_move")
    assert [each["outcome"] for each in ended.attempts] == ["moved"]


@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_carried_over_stays(built: Bench, tmp_path: Path, mode: str) -> None:
    ended = built.run(tmp_path, mode, 3, when="move", USES_MANAGED="1")
    assert (ended.said, ended.reason) == ("survived without a fault", "managed_memory")


FAILING = [("cold", *each) for each in [*AHEAD, *STOPPED]] + [("hot", *each) for each in STOPPED[4:5]]


@pytest.mark.parametrize(("mode", "call", "number"), FAILING)
def test_a_step_that_fails_is_undone(built: Bench, tmp_path: Path, mode: str, call: str, number: int) -> None:
    """The program checks all that it gets back; the second request, for which nothing fails, moves it."""
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / f"fail-{call}").write_text(str(number))
    ended = built.run(tmp_path, mode, 4, threads=3, operations=100, when="move", requests=2)
    assert ended.said == "survived without a fault"
    assert [each["outcome"] for each in ended.attempts] == ["not_moved", "moved"]


@pytest.mark.parametrize(("call", "number"), STOPPED[:4])
def test_hot_what_fails_ahead_is_done_at_the_move(built: Bench, tmp_path: Path, call: str, number: int) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / f"fail-{call}").write_text(str(number))
    ended = built.run(tmp_path, "hot", 4, threads=3, operations=100, when="move", requests=2)
    assert [each["outcome"] for each in ended.attempts] == ["moved"]


def schedule(built: Bench, directory: Path, seed: int, when: str) -> list[str]:
    """The outcomes of one random schedule of requests, threads and calls."""
    dice = random.Random(seed)
    ended = built.run(
        directory,
        dice.choice(MODES),
        seed,
        threads=dice.randint(1, 6),
        operations=dice.randint(20, 200),
        when=when,
        spare=dice.choice([None, 64]),
        requests=dice.randint(1, 3),
        STAND_IN_SEED=str(seed),
        **({"ENDED_AFTERWARDS": "1"} if dice.random() < 0.5 else {}),
    )
    refused = any(each["outcome"] == "refused" for each in ended.attempts)
    assert ended.said.startswith("survived") or (ended.said == "lost 719" and refused), ended
    return [each["outcome"] for each in ended.attempts]


def test_a_move_at_any_moment_makes_nothing_wrong(built: Bench, tmp_path: Path) -> None:
    outcomes = [schedule(built, tmp_path / str(seed), seed, "move") for seed in range(300, 310)]
    assert sum("moved" in each for each in outcomes) >= 8


def test_a_fault_before_or_after_a_move_makes_nothing_wrong(built: Bench, tmp_path: Path) -> None:
    for seed in range(400, 410):
        schedule(built, tmp_path / str(seed), seed, "both")


def test_a_fault_of_the_other_lane_undoes_a_move_and_hurts_none_that_stayed(built: Bench, tmp_path: Path) -> None:
    for seed in range(500, 510):
        dice = random.Random(seed)
        ended = built.run(
            tmp_path / str(seed),
            dice.choice(MODES),
            seed,
            threads=dice.randint(1, 6),
            operations=dice.randint(20, 200),
            when="other",
            STAND_IN_SEED=str(seed),
        )
        moved = any(each["outcome"] == "moved" for each in ended.attempts)
        # After the commit it is the fault of its own lane, and it has no other driver.
        assert ended.said.startswith("survived") or (moved and ended.said == "lost 719"), ended


@pytest.mark.soak
def test_five_hundred_schedules(built: Bench, tmp_path: Path) -> None:
    for seed in range(1000, 1500):
        schedule(built, tmp_path / str(seed), seed, "move" if seed % 2 else "both")
