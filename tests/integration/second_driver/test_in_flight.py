"""Programs with work in flight at the fault: the last epoch is put back, and what was done since is done again."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.integration.second_driver.bench import BESIDE, ONCE, SPARE, Bench

pytestmark = pytest.mark.slow(seconds=30, reason="compiles the preload, and runs a program for each case")

MODES: Final = ["cold", "hot"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name",
    [
        "queued",
        "launched_otherwise",
        "variable_in_flight",
        "variable_asked_in_flight",
        "constant_in_flight",
        "rows_in_flight",
        "freed_in_flight",
        "uninitialised",
        "read_in_flight",
        "set_in_own_stream",
        "seen_by_another_stream",
        "seen_by_a_copy",
        "arbitrary_unseen",
        "changed_in_flight",
        "copied_by_other_names",
        "host_memory_freed",
        "noticed",
        "fault_behind_a_wait",
        "fault_behind_a_copy",
        "large_clusters_in_flight",
    ],
)
def test_it_goes_on_as_if_nothing_had_been(built: Bench, tmp_path: Path, mode: str, name: str) -> None:
    # No epoch is made until it is known that the variable is a constant.
    once = {} if name == "constant_in_flight" else ONCE
    ended = built.case(tmp_path, mode, name, spare=SPARE, **once)
    assert (ended.said, ended.reason) == ("survived", None)
    assert ended.repeated > 0


@pytest.mark.parametrize("repetition", [{}, BESIDE], ids=["alone", "beside"])
def test_memory_is_there_whatever_was_at_its_address_since(
    built: Bench, tmp_path: Path, repetition: dict[str, str]
) -> None:
    """Both are gone at the fault, and the repetition maps them one after the other."""
    ended = built.case(tmp_path, "cold", "freed_twice_in_flight", spare=SPARE, **ONCE, **repetition)
    assert (ended.said, ended.reason) == ("survived", None)
    assert ended.repeated > 0


def test_a_program_that_never_waits_is_stopped_for_an_epoch(built: Bench, tmp_path: Path) -> None:
    """It launches 1,500 kernels; without epochs in between all of them would be launched again."""
    ended = built.case(tmp_path, "cold", "never_waits", spare=SPARE)
    assert ended.said == "survived"
    assert 0 < ended.repeated < 1000


def test_memory_that_is_gone_at_the_fault_is_there_for_the_repetition(built: Bench, tmp_path: Path) -> None:
    # The epoch is one that has seen it.
    ended = built.case(tmp_path, "cold", "unmapped_in_flight", spare=SPARE, MPSGUARD_SECOND_EPOCH_MS="200")
    assert (ended.said, ended.reason) == ("survived", None)
    assert ended.repeated > 0


@pytest.mark.parametrize("name", ["seen_and_diverged", "seen_later_and_diverged", "looked_at_and_diverged"])
def test_another_result_than_the_program_has_seen_is_an_error(built: Bench, tmp_path: Path, name: str) -> None:
    ended = built.case(tmp_path, "cold", name, spare=SPARE, **ONCE)
    assert (ended.said, ended.reason) == ("lost 719", "replay_diverged")


@pytest.mark.parametrize(
    ("name", "reason", "detail"),
    [
        ("unloaded_in_flight", "unlogged", "cuModuleUnload"),
        ("mapped_again", "unlogged", "cuMemMap"),
        ("through_host_memory", "unlogged", "cuMemcpyHtoDAsync_v2"),
        ("host_memory_unregistered", "unlogged", "cuMemHostUnregister"),
        ("limit_in_flight", "unlogged", "cuCtxSetLimit"),
        ("cluster_in_flight", "unlogged", "cuFuncSetAttribute 11"),
        ("unknown_attribute", "launch_events", ""),
        ("read_twice", "unlogged", "cuMemcpyDtoHAsync_v2"),
        ("much_copied", "log_full", "cuMemcpyHtoDAsync_v2"),
    ],
)
def test_what_cannot_be_repeated_gets_the_error(
    built: Bench, tmp_path: Path, name: str, reason: str, detail: str
) -> None:
    ended = built.case(tmp_path, "cold", name, spare=SPARE, **ONCE)
    assert (ended.said, ended.reason) == ("lost 719", reason)
    assert ended.report is not None
    assert ended.report["detail"] == detail


@pytest.mark.parametrize("name", ["kernel_in_flight_in_host_memory", "pointer_in_flight_to_host_memory"])
def test_a_kernel_in_flight_that_works_in_host_memory_faults_alone_and_is_no_culprit(
    built: Bench, tmp_path: Path, name: str
) -> None:
    ended = built.case(tmp_path, "cold", name, spare=SPARE)
    assert (ended.said, ended.reason, ended.other_lane_lives) == ("lost 719", "host_memory_in_kernels", True)


@pytest.mark.parametrize("repetition", [{}, {"MPSGUARD_SECOND_REPETITION": "beside"}], ids=["", "beside"])
@pytest.mark.parametrize(
    "name",
    [
        "kernel_in_host_memory",
        "host_address_in_gpu_memory",
        "host_address_in_constant",
        "host_address_in_record",
        "host_address_in_rows",
        "host_address_by_other_name",
    ],
)
def test_where_kernels_may_work_in_host_memory_alone_shows_that_none_does(
    built: Bench, tmp_path: Path, name: str, repetition: dict[str, str]
) -> None:
    """What looks like an address of it may be that, or what was left on a stack."""
    ended = built.case(tmp_path, "cold", name, spare=SPARE, **repetition)
    assert (ended.said, ended.reason, ended.was_alone, ended.other_lane_lives) == ("survived", None, True, True)


@pytest.mark.parametrize(
    ("spare", "variables", "reason"),
    [
        (None, {}, "work_in_flight"),
        (1, {}, "no_spare_memory"),
        # The program has 2 MiB.
        (SPARE, {"STAND_IN_MIB": "3"}, "no_spare_memory"),
    ],
)
def test_without_spare_memory_work_in_flight_gets_the_error(
    built: Bench, tmp_path: Path, spare: int | None, variables: dict[str, str], reason: str
) -> None:
    ended = built.case(tmp_path, "cold", "queued", spare=spare, **variables)
    assert (ended.said, ended.reason) == ("lost 719", reason)


def test_some_memory_is_left_to_others(built: Bench, tmp_path: Path) -> None:
    """Of 1,000 MiB beside the program's own 602 a copy of those would leave too little."""
    ended = built.case(tmp_path, "cold", "much_memory", spare=SPARE, STAND_IN_ALL_MIB="1602")
    assert (ended.said, ended.reason) == ("lost 719", "no_spare_memory")


@pytest.mark.parametrize("variables", [{}, {"STAND_IN_MIB": "3"}])
def test_an_idle_program_needs_no_spare_memory(built: Bench, tmp_path: Path, variables: dict[str, str]) -> None:
    ended = built.case(tmp_path, "cold", "nothing", spare=1, **variables)
    assert (ended.said, ended.reason, ended.repeated) == ("survived", None, 0)


def test_memory_that_the_program_needs_is_given_up(built: Bench, tmp_path: Path) -> None:
    """Of 63 MiB the program has 2 and wants 60 more; the copy of the 2 is in the way."""
    ended = built.case(tmp_path, "cold", "memory_for_the_program", spare=SPARE, STAND_IN_MIB="63")
    assert (ended.said, ended.reason) == ("survived", None)


def test_freed_memory_that_the_program_needs_is_given_up(built: Bench, tmp_path: Path) -> None:
    """It has 40 of 63 MiB, frees them and wants as much again."""
    variables = {"STAND_IN_MIB": "63", "PROGRAM_HAS_NOTHING": ""}
    ended = built.case(tmp_path, "cold", "memory_for_the_program_again", spare=SPARE, **variables)
    assert (ended.said, ended.reason) == ("survived", None)


def test_freed_memory_is_not_kept_by_a_program_that_does_nothing(built: Bench, tmp_path: Path) -> None:
    assert built.case(tmp_path, "cold", "memory_for_others", spare=SPARE).said == "survived"


def test_memory_that_the_host_cannot_reach_is_not_looked_at(built: Bench, tmp_path: Path) -> None:
    """Without a fault."""
    assert built.case(tmp_path, "cold", "memory_of_a_pool", spare=SPARE).said == "survived"


def test_memory_at_two_addresses_has_one_content(built: Bench, tmp_path: Path) -> None:
    """Whether an epoch comes between is left to chance; a wrong content fails."""
    ended = built.case(tmp_path, "cold", "mapped_twice", spare=SPARE)
    assert (ended.said, ended.reason) in {("survived", None), ("lost 719", "unlogged")}


def test_a_program_that_is_refused_needs_no_copy(built: Bench, tmp_path: Path) -> None:
    assert built.case(tmp_path, "cold", "copy_of_what_is_refused", spare=SPARE).said == "survived"


def test_a_fault_while_the_state_is_copied(built: Bench, tmp_path: Path) -> None:
    ended = built.case(tmp_path, "cold", "fault_in_an_epoch", spare=SPARE)
    assert (ended.said, ended.reason, ended.repeated) == ("survived", None, 0)


def _schedule(built: Bench, tmp_path: Path, seed: int) -> str:
    """Run one by chance; return how it ended: `Bench.run` fails if any content is wrong."""
    dice = random.Random(seed)
    ended = built.run(
        tmp_path / str(seed),
        dice.choice(MODES),
        seed,
        threads=dice.randint(1, 6),
        operations=dice.randint(10, 400),
        when=dice.choice(["any", "late", "late"]),
        spare=SPARE,
        STAND_IN_SEED=str(seed),
        MPSGUARD_SECOND_EPOCH_MS=dice.choice(["1", "15", "1000"]),
    )
    if ended.said.startswith("survived"):
        return "replayed" if ended.repeated else "survived"
    assert ended.said == "lost 719"
    assert ended.reason is not None
    return ended.reason


def test_a_fault_at_any_moment_makes_nothing_wrong(built: Bench, tmp_path: Path) -> None:
    """How often each end comes is chance, and not asserted: each has a case of its own above."""
    for seed in range(1, 25):
        _schedule(built, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_schedules_with_work_in_flight(built: Bench, tmp_path: Path) -> None:
    ended = Counter(_schedule(built, tmp_path, seed) for seed in range(1, 1001))
    assert ended["replayed"] > 800, ended


@pytest.mark.parametrize("mode", ["cold", "hot"])
@pytest.mark.parametrize(("name", "spare"), [("ordered_memory", None), ("ordered_memory_in_flight", SPARE)])
def test_memory_in_stream_order_is_carried_over(
    built: Bench, tmp_path: Path, mode: str, name: str, spare: int | None
) -> None:
    ended = built.case(tmp_path, mode, name, spare=spare)
    assert (ended.said, ended.reason) == ("survived", None)
    assert (ended.repeated > 0) == (spare is not None)
