"""A program goes over again and again: moves and faults in turn, and each driver is the first one for what follows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.integration.second_driver.bench import BESIDE, SPARE, Bench, Ended

pytestmark = pytest.mark.slow(seconds=60, reason="compiles the preload, and runs many schedules of moves and faults")

OVER: Final = ("taken_over", "moved")
LOSES: Final = frozenset(
    {
        "work_in_flight",
        "changed_variables",
        "unlogged",
        "no_copies_left",
        "second_failed",
        "not_repeated",
        "replay_diverged",
    }
)
"""Why a program is refused that meets a fault at any moment, or two at once."""


def schedule(built: Bench, directory: Path, seed: int) -> Ended:
    """Run one random schedule; a wrong content fails the test."""
    dice = random.Random(seed)
    mode = dice.choice(["cold", "hot"])
    variables = {} if dice.random() < 0.3 else dict(BESIDE)
    # A driver that is made ready in the old lane would be ended with what that has of the program.
    if mode == "cold" and dice.random() < 0.5:
        variables["ENDED_AFTERWARDS"] = "1"
    if dice.random() < 0.3:
        variables["STAND_IN_EXPORTS_ONCE"] = "1"
    ended = built.run(
        directory,
        mode,
        seed,
        threads=dice.randint(1, 6),
        operations=dice.randint(20, 150),
        when="rounds",
        spare=dice.choice([None, SPARE, SPARE]),
        requests=dice.randint(1, 6),
        STAND_IN_SEED=str(seed),
        **variables,
    )
    refused = [each["reason"] for each in ended.attempts if each["outcome"] == "refused"]
    assert ended.said.startswith("survived") or (ended.said == "lost 719" and refused), ended
    assert set(refused) <= LOSES, ended
    return ended


def goings_over(ended: Ended) -> int:
    return sum(each["outcome"] in OVER for each in ended.attempts)


def test_moves_and_faults_in_any_order_make_nothing_wrong(built: Bench, tmp_path: Path) -> None:
    often = Counter(goings_over(schedule(built, tmp_path / str(seed), seed)) for seed in range(20))
    assert sum(number for times, number in often.items() if times > 1) >= 8, often


@pytest.mark.parametrize("mode", ["cold", "hot"])
@pytest.mark.parametrize(
    "name", ["made_between", "found_again", "handles_between", "variables_between", "limit_between"]
)
def test_what_is_made_in_one_driver_is_there_in_those_after_it(
    built: Bench, tmp_path: Path, mode: str, name: str
) -> None:
    ended = built.case(tmp_path, mode, name)
    assert (ended.said, ended.reason) == ("survived", None)
    assert goings_over(ended) >= 3


@pytest.mark.parametrize("mode", ["cold", "hot"])
@pytest.mark.parametrize("name", ["made_between", "handles_between"])
def test_memory_goes_on_where_a_driver_exports_nothing_that_it_has_imported(
    built: Bench, tmp_path: Path, mode: str, name: str
) -> None:
    """The descriptors by which it came are kept: not measured of a driver."""
    ended = built.case(tmp_path, mode, name, STAND_IN_EXPORTS_ONCE="1")
    assert (ended.said, ended.reason) == ("survived", None)
    assert goings_over(ended) >= 3


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_a_process_has_so_many_drivers_and_no_more(built: Bench, tmp_path: Path, mode: str) -> None:
    ended = built.case(tmp_path, mode, "without_end")
    assert (ended.said, ended.reason) == ("lost 719", "no_copies_left")
    assert goings_over(ended) == 8


@pytest.mark.soak
def test_five_hundred_schedules(built: Bench, tmp_path: Path) -> None:
    often = Counter(goings_over(schedule(built, tmp_path / str(seed), seed)) for seed in range(5000, 5500))
    assert sum(number for times, number in often.items() if times > 1) >= 250, often
