"""Single programs that would get a wrong result, or would not be let go on, if one thing were forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpsguard.preload import library
from tests.integration.second_driver.bench import Bench

pytestmark = pytest.mark.slow(seconds=20, reason="compiles the preload, and runs a program for each case")

MODES = ["cold", "hot"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "handles_used_again",
        "image_in_writable_memory",
        "image_in_a_file",
        "destroyed_after",
        "constant_written_after",
        "constant_written_first",
        "handle_asked",
        "created_after",
        "forked",
    ],
)
def test_it_goes_on_with_right_results(built: Bench, tmp_path: Path, mode: str, name: str) -> None:
    ended = built.case(tmp_path, mode, name)
    assert (ended.said, ended.reason) == ("survived", None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", ["0", "1"])
def test_a_program_that_uses_one_of_several_gpus_goes_on(built: Bench, tmp_path: Path, mode: str, device: str) -> None:
    ended = built.case(tmp_path, mode, "handles_used_again", STAND_IN_DEVICES="2", PROGRAM_DEVICE=device)
    assert (ended.said, ended.reason) == ("survived", None)


def test_a_fault_of_the_other_lane_afterwards_is_told_as_one(built: Bench, tmp_path: Path) -> None:
    """Also by a call for which something has to be made there first: the program has to know its context is gone."""
    ended = built.case(tmp_path, "cold", "second_lane_faults_too")
    assert (ended.said, ended.reason) == ("lost 719", "changed_variables")


def test_a_program_that_uses_two_gpus_gets_the_error(built: Bench, tmp_path: Path) -> None:
    ended = built.case(tmp_path, "cold", "another_device", STAND_IN_DEVICES="2")
    assert (ended.said, ended.reason) == ("lost 719", "several_devices")


def test_a_launch_during_the_takeover_is_not_lost(built: Bench, tmp_path: Path) -> None:
    """It succeeds with the first driver, if it gets there: threads learn of a fault one after another."""
    assert built.case(tmp_path, "cold", "late_launch").said == "survived"


def test_the_program_is_on_the_second_of_two_gpus(built: Bench, tmp_path: Path) -> None:
    assert built.case(tmp_path, "cold", "nothing", PROGRAM_DEVICE="1").said == "survived"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty_copy", "work_in_flight"),
        ("recorded_meanwhile", "work_in_flight"),
        ("stream_of_ended_thread", "work_in_flight"),
        ("copied_in_other_direction", "work_in_flight"),
        ("exported", "shared_with_others"),
        ("exported_by_ipc", "shared_with_others"),
        ("enumerated", "enumerated_functions"),
        ("variable_with_address", "device_variables"),
        ("context_reset", "several_contexts"),
        ("device_registered", "pinned_memory"),
    ],
)
def test_what_is_not_certain_gets_the_error(built: Bench, tmp_path: Path, name: str, reason: str) -> None:
    ended = built.case(tmp_path, "cold", name)
    assert (ended.said, ended.reason) == ("lost 719", reason)


@pytest.mark.parametrize("name", ["registered_is_not_freed", "many_events"])
def test_without_a_fault_nothing_is_different(built: Bench, tmp_path: Path, name: str) -> None:
    assert built.case(tmp_path, "cold", name).said == "survived"


@pytest.mark.parametrize("mode", ["off", "cold"])
def test_a_driver_under_another_name_is_found(built: Bench, tmp_path: Path, mode: str) -> None:
    assert built.case(tmp_path, mode, "passed_on", program="cases-renamed").said == "survived"


def test_switched_off_another_tool_is_not_passed_by(built: Bench, tmp_path: Path) -> None:
    both = f"{built.built / library.NAME}:{built.built / 'libtool.so'}"
    assert built.case(tmp_path, "off", "passed_on", LD_PRELOAD=both, PROGRAM_DRIVER_VERSION="4242").said == "survived"


def test_switched_off_a_program_sees_what_the_driver_has(built: Bench, tmp_path: Path) -> None:
    assert built.case(tmp_path, "off", "passed_on").said == "survived"
