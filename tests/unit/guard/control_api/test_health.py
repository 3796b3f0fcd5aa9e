"""Health, from lanes and sensors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.control_api.health import (
    ESSENTIAL,
    FAULT_LASTS,
    MAX_TEXT,
    DeviceFault,
    GuardStanding,
    Health,
    PathFlaw,
    ProbeKind,
    answer,
    judge,
    line,
)
from mpsguard.guard.evidence import Source
from mpsguard.guard.model import LaneReport, LaneState

NOW = 1_000_000.0
ASKS = (ProbeKind.READY, ProbeKind.SLURM, ProbeKind.NPD)
BROKEN = DeviceFault("20260101-1", "0000:01:00", (79,))
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


def lane(state: LaneState, *, name: str = "default-0", age: float = 0.0, flapping: bool = False) -> LaneReport:
    return LaneReport(name, "default", state, "a reason", NOW - age, "/p", "/l", flapping=flapping)


def told(
    purpose: ProbeKind,
    *active: LaneReport,
    spare: tuple[LaneReport, ...] = (),
    settled: bool = True,
    absent: dict[str, str] | None = None,
    faults: tuple[DeviceFault, ...] = (),
    flaws: tuple[PathFlaw, ...] = (),
) -> bool:
    standing = GuardStanding(
        settled=settled,
        active=active,
        spare=spare,
        clients=3,
        flaws=flaws,
        health=judge([*active, *spare], absent or {}, flaws),
        device_faults=faults,
    )
    said = answer(purpose, lambda: standing, NOW)
    assert 0 < len(said.text) <= MAX_TEXT
    assert "\n" not in said.text
    return said.ok


@pytest.mark.parametrize("purpose", ASKS)
def test_a_healthy_guard_is_a_yes(purpose: ProbeKind) -> None:
    assert told(purpose, lane(LaneState.ACTIVE))


@pytest.mark.parametrize("purpose", ASKS)
@pytest.mark.parametrize(
    "degraded",
    [
        {"active": lane(LaneState.ACTIVE, flapping=True)},
        {"active": lane(LaneState.ACTIVE), "absent": {"uvm": "no such device"}},
        {"active": lane(LaneState.UNKNOWN, age=3600)},
        {"active": lane(LaneState.INITIALIZING)},
        {"active": lane(LaneState.ACTIVE), "spare": (lane(LaneState.DOWN, name="default-1", age=3600),)},
    ],
)
def test_a_degraded_guard_is_a_yes(purpose: ProbeKind, degraded: dict[str, object]) -> None:
    more = dict(degraded)
    assert told(purpose, more.pop("active"), **more)  # type: ignore[arg-type]


def test_a_lane_that_is_down_is_not_ready_and_drains_nothing() -> None:
    down = lane(LaneState.DOWN, age=3600)
    assert [told(purpose, down) for purpose in ASKS] == [False, True, True]


def test_a_fault_is_told_at_once_and_drains_when_it_lasts() -> None:
    for age, drains in ((0.0, False), (FAULT_LASTS - 1, False), (FAULT_LASTS, True)):
        faulty = lane(LaneState.FAULT, age=age)
        assert [told(purpose, faulty) for purpose in ASKS] == [False, not drains, False]


def test_a_fault_of_a_spare_lane_keeps_no_client_out() -> None:
    spare = (lane(LaneState.FAULT, name="default-1", age=3600),)
    assert [told(purpose, lane(LaneState.ACTIVE), spare=spare) for purpose in ASKS] == [True, True, False]


def test_a_device_fault_drains_and_leaves_the_guard_ready() -> None:
    assert [told(purpose, lane(LaneState.ACTIVE), faults=(BROKEN,)) for purpose in ASKS] == [True, False, False]


def test_a_guard_that_is_starting_is_not_ready_and_drains_nothing() -> None:
    starting = lane(LaneState.INITIALIZING)
    assert [told(purpose, starting, settled=False) for purpose in ASKS] == [False, True, True]


@pytest.mark.parametrize("purpose", ASKS)
@pytest.mark.parametrize("keeps_out", [True, False])
def test_a_path_is_a_no_if_programs_run_without_mps_for_it(purpose: ProbeKind, keeps_out: bool) -> None:
    flaw = PathFlaw("/run/nvidia-mps", "is gone", keeps_out)
    assert told(purpose, lane(LaneState.ACTIVE), flaws=(flaw,)) is not keeps_out


def test_liveness_looks_at_nothing() -> None:
    def never() -> GuardStanding:
        raise AssertionError("liveness depends on no lane")

    assert answer(ProbeKind.LIVE, never).ok


@given(st.text())
def test_any_text_becomes_one_short_line_of_ascii(text: str) -> None:
    said = line(text)
    assert len(said) <= MAX_TEXT
    assert said.isascii()
    assert not said or said.isprintable()
