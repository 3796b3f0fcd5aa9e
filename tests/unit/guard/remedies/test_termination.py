"""Clean termination of real processes, whatever the control daemon says or does not say."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.guard.model import Work
from mpsguard.guard.remedies.termination import Termination, TerminationPlan, terminate
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.unit.guard.remedies.lanes import OBEDIENT, STUBBORN, ScriptedLane, UnlistedLane, living

SERVER = 77
TERM = signal.SIGTERM


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert opened_since(before) == []


def run(lane: ScriptedLane, plan: TerminationPlan, program: str = OBEDIENT) -> tuple[Termination, int | None]:
    """What came of it, and how the process ended; None if it lives."""
    with living(program) as (process, handle):
        lane.listed = {process.pid: SERVER, **lane.listed}
        result = asyncio.run(asyncio.wait_for(terminate((lane,), handle, plan), 30))
        assert result.pid == process.pid
        assert result.ended == (not handle.alive())
        return result, process.wait(30) if result.ended else None


def test_the_work_ends_first_and_without_a_signal_the_process_lives() -> None:
    lane = ScriptedLane({}, ("0",))
    result, status = run(lane, TerminationPlan(5))
    assert (result.end.work, result.end.server, result.signals, status) == (Work.ENDED, SERVER, (), None)
    assert lane.asked == [f"terminate_client {SERVER} {result.pid}"]


def test_one_signal_ends_a_process_that_obeys() -> None:
    result, status = run(ScriptedLane({}, ("0",)), TerminationPlan(5, TERM, grace=20))
    assert (result.signals, status) == (("SIGTERM",), -signal.SIGTERM)


def test_one_that_does_not_is_killed_after_the_grace() -> None:
    result, status = run(ScriptedLane({}, ("0",)), TerminationPlan(5, TERM, grace=0.05), STUBBORN)
    assert (result.signals, status) == (("SIGTERM", "SIGKILL"), -signal.SIGKILL)


def test_without_a_grace_there_is_one_signal() -> None:
    result, status = run(ScriptedLane({}, ("0",)), TerminationPlan(5, TERM), STUBBORN)
    assert (result.signals, status, result.ended) == (("SIGTERM",), None, False)


@pytest.mark.parametrize(
    ("lane", "work"),
    [
        (ScriptedLane({}, ("201",)), Work.REFUSED),
        (ScriptedLane({}, ()), Work.REFUSED),
        (ScriptedLane({}, None), Work.UNKNOWN),
        (ScriptedLane({}, CommandFailedError("broke off")), Work.UNKNOWN),
        (UnlistedLane({}, None), Work.UNKNOWN),
        (UnlistedLane({}, CommandFailedError("x")), Work.UNKNOWN),
    ],
)
def test_work_that_may_go_on_keeps_its_process_unless_forced(lane: ScriptedLane, work: Work) -> None:
    result, status = run(lane, TerminationPlan(0.1, signal.SIGKILL))
    assert (result.end.work, result.end.work.in_flight, result.signals, status) == (work, True, (), None)
    forced, status = run(lane, TerminationPlan(0.1, signal.SIGKILL, force=True))
    assert (forced.signals, status) == (("SIGKILL",), -signal.SIGKILL)


@pytest.mark.parametrize(
    ("second", "work", "signals"),
    [
        (("0",), Work.ENDED, ("SIGTERM",)),
        (("201",), Work.REFUSED, ()),
        (CommandFailedError("broke off"), Work.UNKNOWN, ()),
    ],
)
def test_work_on_two_lanes_ends_on_both_before_the_process(
    second: tuple[str, ...] | Exception, work: Work, signals: tuple[str, ...]
) -> None:
    with living(OBEDIENT) as (process, handle):
        lanes = [ScriptedLane({process.pid: SERVER}, ("0",)), ScriptedLane({process.pid: SERVER + 1}, second)]
        for order in (lanes, lanes[::-1]):
            result = asyncio.run(asyncio.wait_for(terminate(order, handle, TerminationPlan(20)), 30))
            assert result.end.work == work
        result = asyncio.run(asyncio.wait_for(terminate(lanes, handle, TerminationPlan(20, TERM, grace=20)), 30))
        assert (result.end.work, result.signals) == (work, signals)
        assert [len(lane.asked) for lane in lanes] == [3, 3]


def test_a_lane_that_does_not_list_a_process_does_not_stand_for_the_other_one() -> None:
    """As the lane that it worked on: a fault has ended the server there."""
    with living(OBEDIENT) as (process, handle):
        lanes = [ScriptedLane({}, ("201",)), ScriptedLane({process.pid: SERVER}, ("0",))]
        result = asyncio.run(asyncio.wait_for(terminate(lanes, handle, TerminationPlan(20, TERM)), 30))
        assert (result.end.work, result.end.server, result.signals) == (Work.ENDED, SERVER, ("SIGTERM",))
        assert lanes[0].asked == []


def test_a_process_that_no_server_lists_is_left_alone() -> None:
    class Elsewhere(ScriptedLane):
        async def clients(self) -> dict[int, int]:
            return {1: SERVER}

    lane = Elsewhere({}, ("0",))
    result, status = run(lane, TerminationPlan(5, TERM))
    assert (result.end.work, result.signals, status, lane.asked) == (Work.NONE, (), None, [])


def test_a_process_that_has_ended_is_not_asked_for() -> None:
    """Its pid may be another client's by now."""
    with living(OBEDIENT) as (process, handle):
        process.kill()
        process.wait()
        lane = ScriptedLane({process.pid: SERVER}, ("0",))
        result = asyncio.run(terminate((lane,), handle, TerminationPlan(5, TERM, force=True)))
    assert (result.end.work, result.ended, result.signals, lane.asked) == (Work.GONE, True, (), [])


def test_what_the_daemon_says_is_printable() -> None:
    result, _ = run(ScriptedLane({}, ("a\x1b[31m\nb", "1")), TerminationPlan(5))
    assert result.end.answer.isprintable()


def test_the_work_of_a_stopped_process_is_not_waited_for() -> None:
    with living(OBEDIENT) as (process, handle):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        lane = ScriptedLane({process.pid: SERVER}, ("0",))
        result = asyncio.run(asyncio.wait_for(terminate((lane,), handle, TerminationPlan(20, TERM)), 30))
        assert (result.end.work, lane.asked, result.signals, result.done()) == (Work.STOPPED, [], (), False)


def test_a_stopped_process_that_is_to_end_is_killed_at_once() -> None:
    with living(OBEDIENT) as (process, handle):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        lane = ScriptedLane({process.pid: SERVER}, ("0",))
        plan = TerminationPlan(20, TERM, grace=20)
        result = asyncio.run(asyncio.wait_for(terminate((lane,), handle, plan), 30))
        assert (lane.asked, result.signals, result.done()) == ([], ("SIGKILL",), True)
        assert process.wait(30) == -signal.SIGKILL
