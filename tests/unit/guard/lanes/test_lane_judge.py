"""When newcomers may pass a lane that has something to recover from."""

import msgspec
import pytest

from mpsguard.guard.lanes import lane_judge, lane_state
from mpsguard.guard.lanes.lane_judge import Recovery, RecoveryRecord, quiet_at, recovering, with_sign
from mpsguard.guard.model import LaneState

NOW = 1000.0
HEAD = "[2026-11-20 14:01:28.554 Server   479] "


def test_a_lane_of_which_nothing_is_known_takes_newcomers_at_once() -> None:
    assert recovering(RecoveryRecord(), NOW) == ""
    assert quiet_at(RecoveryRecord(), NOW) <= NOW


@pytest.mark.parametrize(
    ("said", "after", "holds"),
    [
        (None, 0.0, True),
        (None, lane_judge.UNSAID - 0.1, True),
        (None, lane_judge.UNSAID, False),
        # The server has said so since, or a moment before: then its own state counts.
        (NOW + 1, 2.0, False),
        (NOW - lane_judge.BEFORE / 2, 0.0, False),
        # Of an earlier fault.
        (NOW - 2 * lane_judge.BEFORE, 0.0, True),
    ],
)
def test_a_fault_that_was_seen_holds_newcomers_until_the_server_has_said_it(
    said: float | None, after: float, holds: bool
) -> None:
    assert bool(recovering(RecoveryRecord(sign=NOW, said=said), NOW + after)) is holds


def test_signs_that_no_server_says_anything_of_do_not_hold_newcomers_without_end() -> None:
    record = RecoveryRecord()
    held = 0
    for tick in range(600):
        record = with_sign(record, NOW + tick)
        held += bool(recovering(record, NOW + tick))
    assert held <= 600 * lane_judge.UNSAID / lane_judge.UNHEARD
    record = with_sign(msgspec.structs.replace(record, said=NOW + 600), NOW + 610)
    assert recovering(record, NOW + 610), "once the server has said one, the next one counts"


def test_devices_that_are_to_be_reset_hold_newcomers_until_each_has_been() -> None:
    record = RecoveryRecord(devices=frozenset({0, 1}), listed=NOW)
    assert "0, 1" in recovering(record, NOW)
    assert recovering(record, NOW + lane_judge.UNSAID) == ""


def test_newcomers_wait_for_a_crashed_clients_work_to_show_and_no_longer_than_a_second() -> None:
    assert quiet_at(RecoveryRecord(left_badly=NOW), NOW) == NOW + lane_judge.QUIET
    assert quiet_at(RecoveryRecord(left_badly=NOW), NOW + 100) < NOW + 100
    for crash in range(100):
        assert quiet_at(RecoveryRecord(left_badly=NOW + crash / 10), NOW) <= NOW + lane_judge.HELD_UP


def test_a_lane_that_recovers_is_not_said_to_be_active_and_parks() -> None:
    judged = lane_state.judged(LaneState.ACTIVE, "well", None, (), "because")
    assert judged == {"state": LaneState.RECOVERING, "reason": "because", "doubt": ""}
    assert not lane_state.admits(LaneState.RECOVERING)
    assert lane_state.judged(LaneState.FAULT, "torn down", None, (), "because")["state"] is LaneState.FAULT


@pytest.mark.parametrize("believed", [True, False])
def test_the_servers_log_names_the_devices_and_when_each_was_reset(believed: bool) -> None:
    found = Recovery(lambda: None, lambda: believed)
    for line in (
        "The following devices will be reset:",
        "0",
        "1",
        "The following client process have a sticky error set:",
        "7",
    ):
        found.hear(HEAD + line)
    assert found.record.devices == (frozenset({0, 1}) if believed else frozenset())
    found.hear(HEAD + "Destroy server context on device 1 (NVIDIA H100)")
    assert found.record.devices == (frozenset({0}) if believed else frozenset())
    found.hear(HEAD + "Destroy server context on device 0 (NVIDIA H100)")
    assert found.why() == ""


def test_a_log_that_names_devices_without_end_takes_no_room() -> None:
    found = Recovery(lambda: None, lambda: True)
    found.hear(HEAD + "The following devices will be reset:")
    for number in range(999):
        found.hear(f"{HEAD}{number}")
    found.hear(HEAD + "9" * 1000)
    assert len(found.record.devices) <= 64


def test_the_servers_word_in_its_log_counts_as_said() -> None:
    told: list[None] = []
    found = Recovery(lambda: told.append(None), lambda: False)
    found.fault_seen()
    assert found.why()
    assert told
    found.hear(HEAD + "Server is handling a fatal GPU error.")
    assert found.why() == ""


def test_another_control_daemon_has_nothing_to_recover_from_but_clients_that_have_just_left() -> None:
    found = Recovery(lambda: None, lambda: True)
    found.fault_seen()
    found.client_left_badly()
    found.begin()
    assert found.why() == ""
    assert found.quiet_at(0.0) == lane_judge.HELD_UP
