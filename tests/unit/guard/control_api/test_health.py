"""Health, from lanes and sensors."""

from mpsguard.guard.control_api.health import ESSENTIAL, Health, judge
from mpsguard.guard.evidence import Source
from mpsguard.guard.model import LaneReport, LaneState

WELL = LaneReport("a-0", "a", LaneState.ACTIVE, "", 0.0, "/p", "/l")


def test_an_absent_essential_sensor_degrades_and_says_what_is_not_kept() -> None:
    judgement = judge([WELL], {Source.UVM: "no such device"})
    assert judgement.health is Health.DEGRADED
    (problem,) = judgement.problems
    assert "no such device" in problem
    assert ESSENTIAL[Source.UVM] in problem


def test_other_sensors_may_be_absent() -> None:
    assert judge([WELL], {Source.KMOD: "not loaded"}).health is Health.HEALTHY


def test_a_lane_in_fault_is_graver_than_a_sensor() -> None:
    fault = LaneReport("a-0", "a", LaneState.FAULT, "x", 0.0, "/p", "/l")
    assert judge([fault], {Source.NVML: "no driver"}).health is Health.FAULT
