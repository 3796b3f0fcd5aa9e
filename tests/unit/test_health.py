"""Health, from lanes and sensors."""

from mpsguard.daemon.health import ESSENTIAL, Health, judge
from mpsguard.evidence import Source
from mpsguard.model import LaneReport, LaneState
from mpsguard.sensors.state import SensorState

WELL = LaneReport("a-0", "a", LaneState.ACTIVE, "", 0.0, "/p", "/l")
THERE, ABSENT = SensorState(True, "there"), SensorState(False, "no such device")


def test_an_absent_essential_sensor_degrades_and_says_what_is_not_kept() -> None:
    states: dict[str, SensorState] = {**dict.fromkeys(ESSENTIAL, THERE), Source.UVM: ABSENT}
    judgement = judge([WELL], states)
    assert judgement.health is Health.DEGRADED
    (problem,) = judgement.problems
    assert "no such device" in problem
    assert ESSENTIAL[Source.UVM] in problem


def test_other_sensors_may_be_absent() -> None:
    states: dict[str, SensorState] = {**dict.fromkeys(ESSENTIAL, THERE), Source.KMOD: ABSENT}
    assert judge([WELL], states).health is Health.HEALTHY


def test_a_lane_in_fault_is_graver_than_a_sensor() -> None:
    fault = LaneReport("a-0", "a", LaneState.FAULT, "x", 0.0, "/p", "/l")
    assert judge([fault], {Source.NVML: ABSENT}).health is Health.FAULT
