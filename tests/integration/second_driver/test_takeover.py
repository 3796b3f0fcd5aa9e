"""A neighbour's fault destroys the driver's context: a program goes on as if nothing had been, or gets the error."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integration.second_driver.bench import Bench

pytestmark = pytest.mark.slow(seconds=30, reason="compiles the preload, and runs many schedules of threads and faults")

MODES = ["cold", "hot"]


@pytest.mark.parametrize("mode", ["off", *MODES])
def test_without_a_fault_the_program_notices_nothing(built: Bench, tmp_path: Path, mode: str) -> None:
    ended = built.run(tmp_path, mode, 1, when="never")
    assert (ended.said, ended.report) == ("survived without a fault", None)


def test_switched_off_the_program_gets_the_error(built: Bench, tmp_path: Path) -> None:
    ended = built.run(tmp_path, "off", 1)
    assert (ended.said, ended.report) == ("lost 719", None)


@pytest.mark.parametrize("mode", MODES)
def test_an_idle_program_goes_on(built: Bench, tmp_path: Path, mode: str) -> None:
    """With its memory, streams, events, kernels and their attributes, and a variable that kernels wrote."""
    ended = built.run(tmp_path, mode, 2, threads=4, operations=200)
    assert ended.said == "survived"
    assert ended.report is not None
    assert ended.report["outcome"] == "taken_over"


@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_carried_over_is_named(built: Bench, tmp_path: Path, mode: str) -> None:
    ended = built.run(tmp_path, mode, 3, USES_MANAGED="1")
    assert (ended.said, ended.reason) == ("lost 719", "managed_memory")
    assert ended.report is not None
    assert ended.report["detail"] == "cuMemAllocManaged"


def test_without_zones_memory_is_the_drivers_own(built: Bench, tmp_path: Path) -> None:
    ended = built.case(tmp_path, "cold", "nothing", MPSGUARD_ZONES_SMALL="plain")
    assert (ended.said, ended.reason) == ("lost 719", "plain_memory")


def test_a_lane_that_is_not_there_is_told(built: Bench, tmp_path: Path) -> None:
    ended = built.run(tmp_path, "cold", 5, MPSGUARD_SECOND_PIPE_DIRECTORY=str(tmp_path / "nowhere"))
    assert (ended.said, ended.reason) == ("lost 719", "second_failed")
    assert ended.report is not None
    assert ended.report["detail"] == "load"


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_at_any_moment_makes_nothing_wrong(built: Bench, tmp_path: Path, mode: str) -> None:
    """The program itself checks all content: `Bench.run` fails if any is wrong."""
    for seed in range(100, 112):
        dice = random.Random(seed)
        ended = built.run(
            tmp_path / str(seed),
            mode,
            seed,
            threads=dice.randint(1, 6),
            operations=dice.randint(10, 200),
            when="any",
        )
        assert ended.said.startswith("survived") or (
            ended.said == "lost 719" and ended.reason in ("work_in_flight", "changed_variables")
        )


@pytest.mark.soak
def test_a_thousand_schedules(built: Bench, tmp_path: Path) -> None:
    for seed in range(1, 1001):
        dice = random.Random(seed)
        ended = built.run(
            tmp_path / str(seed),
            dice.choice(MODES),
            seed,
            threads=dice.randint(1, 6),
            operations=dice.randint(10, 200),
            when=dice.choice(["idle", "any"]),
        )
        assert ended.said.startswith("survived") or (ended.said == "lost 719" and ended.reason is not None)
