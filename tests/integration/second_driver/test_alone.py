"""Work in flight of a program that may be the culprit is done again alone: no lane sees it, and its fault names it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.integration.second_driver.bench import BESIDE, ONCE, SPARE, Bench, Ended

pytestmark = pytest.mark.slow(seconds=40, reason="compiles the preload, and runs many schedules of threads and faults")

MODES: Final = ["cold", "hot"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["culprit", "culprit_behind_what_was_over"])
def test_beside_others_a_culprit_ends_the_other_lane(built: Bench, tmp_path: Path, mode: str, name: str) -> None:
    """The hazard, as it is for a program that is called trusted and is not."""
    ended = built.case(tmp_path, mode, name, spare=SPARE, **ONCE, **BESIDE)
    assert (ended.said, ended.reason, ended.other_lane_lives) == ("lost 719", "second_failed", False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["culprit", "culprit_behind_what_was_over"])
def test_alone_it_faults_where_no_other_work_is_and_is_named(
    built: Bench, tmp_path: Path, mode: str, name: str
) -> None:
    ended = built.case(tmp_path, mode, name, spare=SPARE, **ONCE)
    assert (ended.said, ended.reason, ended.other_lane_lives) == ("lost 719", "repeated_fault", True)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_repeated_alone_goes_on_in_the_lane(built: Bench, tmp_path: Path, mode: str) -> None:
    ended = built.case(tmp_path, mode, "used_after_repetition", spare=SPARE)
    assert (ended.said, ended.reason, ended.was_alone) == ("survived", None, True)


def test_a_trusted_program_repeats_beside_others(built: Bench, tmp_path: Path) -> None:
    ended = built.case(tmp_path, "cold", "used_after_repetition", spare=SPARE, **BESIDE)
    assert (ended.said, ended.reason, ended.was_alone) == ("survived", None, False)


def test_an_idle_program_repeats_nothing(built: Bench, tmp_path: Path) -> None:
    ended = built.case(tmp_path, "cold", "nothing", spare=SPARE)
    assert (ended.said, ended.was_alone) == ("survived", False)


def test_a_fault_in_work_that_was_over_accuses_no_program(built: Bench, tmp_path: Path) -> None:
    """The work ran without one: it is the repetition that is another."""
    ended = built.case(tmp_path, "cold", "address_of_code_seen", spare=SPARE, **ONCE)
    assert (ended.said, ended.reason, ended.other_lane_lives) == ("lost 719", "replay_diverged", True)


@pytest.mark.parametrize(
    ("name", "variables", "detail"),
    [
        ("endless_when_alone", {"MPSGUARD_SECOND_ALONE_SECONDS": "0.2"}, "the replay does not end"),
        ("queued", {"STAND_IN_NOT_ALONE": ""}, "context"),
    ],
)
def test_what_cannot_be_repeated_alone_gets_the_error(
    built: Bench, tmp_path: Path, name: str, variables: dict[str, str], detail: str
) -> None:
    ended = built.case(tmp_path, "cold", name, spare=SPARE, **ONCE, **variables)
    assert (ended.said, ended.reason) == ("lost 719", "not_repeated")
    assert ended.report is not None
    assert ended.report["detail"] == detail


def test_it_is_on_the_same_gpu_alone(built: Bench, tmp_path: Path) -> None:
    """Outside of MPS it is the first one that the copy sees."""
    ended = built.case(tmp_path, "cold", "used_after_repetition", spare=SPARE, PROGRAM_DEVICE="1")
    assert (ended.said, ended.was_alone) == ("survived", True)


def _schedule(built: Bench, tmp_path: Path, seed: int) -> list[str]:
    """Run a culprit among innocents by chance; return how each ended. A wrong content fails the test."""
    dice = random.Random(seed)
    whole = tmp_path / str(seed)
    started = []
    for number in range(dice.randint(1, 3)):
        command = built.program(
            10 * seed + number,
            threads=dice.randint(1, 4),
            operations=dice.randint(50, 300),
            when="never" if number else "culprit",
        )
        variables = {
            "STAND_IN_SEED": str(seed + number),
            "MPSGUARD_SECOND_EPOCH_MS": dice.choice(["1", "15", "1000"]),
        }
        mode = dice.choice(MODES)
        started.append(built.start(whole / str(number), mode, command, SPARE, variables, lanes=whole))
    try:
        ended = [each.end() for each in started]
    finally:
        for each in started:
            each.close()
    assert all(each.other_lane_lives for each in ended)
    culprit, *innocents = ended
    assert culprit.said == "lost 719", culprit
    # It is no culprit where it had no epoch to begin at, or its work was not such as can be repeated.
    assert culprit.was_alone == (culprit.reason in {"repeated_fault", "replay_diverged", "not_repeated"}), culprit
    assert all(each.reason != "repeated_fault" for each in innocents)
    return [f"culprit: {culprit.reason}", *map(_end_of_innocent, innocents)]


def _end_of_innocent(ended: Ended) -> str:
    if ended.reason is not None:
        return f"innocent: {ended.reason}"
    how = "was not hit" if ended.report is None else "repeated alone" if ended.was_alone else "repeated nothing"
    return f"innocent: {how}"


def test_culprits_among_innocents_end_no_other_lane(built: Bench, tmp_path: Path) -> None:
    """How often each end comes is chance, and not asserted: each has a case of its own above."""
    for seed in range(1, 21):
        _schedule(built, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_schedules_with_culprits(built: Bench, tmp_path: Path) -> None:
    ended = Counter(said for seed in range(1, 1001) for said in _schedule(built, tmp_path, seed))
    assert ended["culprit: repeated_fault"] >= 700, ended
    assert ended["innocent: repeated alone"] >= 250, ended
