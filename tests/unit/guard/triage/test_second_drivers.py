"""Verdicts on lanes with second drivers: which client was where, which survived; a claim accuses no other client."""

import random

import pytest

from mpsguard.guard.evidence import Evidence, SecondDriverCame, ServerEnding, ServerSays, Source, Trust, WentOver
from mpsguard.guard.incident import Confidence, FaultClass, Ground
from mpsguard.guard.triage.client_history import ClientHistory
from mpsguard.guard.triage.verdict import triage
from mpsguard.linux.identity import ProcessKey
from tests.unit.guard.triage.test_verdict import (
    MISALIGNED,
    SERVER,
    A,
    B,
    C,
    came,
    ended,
    fresh,
    only,
    pids,
    seen,
    server,
    uvm,
    xid,
)


def second(process: ProcessKey, at: float, lane: str = "default-1") -> Evidence:
    return seen(Source.LANE, at, SecondDriverCame(lane), process, trust=Trust.PROOF)


def went(process: ProcessKey, at: float, lane: str = "default-1", was: str = "default-0") -> Evidence:
    return seen(Source.LANE, at, WentOver(lane, was), process)


def torn(*clients: ProcessKey, at: float = 20.015, lane: str = "default-0") -> list[Evidence]:
    return [server("teardown", at, client, lane) for client in clients]


COLD = [came(A), came(B), *MISALIGNED, *torn(A, B), second(A, 20.2), went(A, 20.4)]


@pytest.mark.parametrize("seed", range(6))
def test_a_victim_that_went_over_has_survived_in_whatever_order_that_is_heard(seed: int) -> None:
    evidence = list(COLD)
    random.Random(seed).shuffle(evidence)
    incident = only(triage(evidence))
    assert (incident.lane, pids(incident.victims), pids(incident.survived)) == ("default-0", {B.pid}, {A.pid})
    # It may have been the culprit all the same: what it says is no proof of anything.
    assert pids(incident.candidates) == {A.pid, B.pid}


@pytest.mark.parametrize("seed", range(6))
def test_a_client_that_came_back_is_where_it_is(seed: int) -> None:
    """Or its lane's only other client would be accused of what it does there."""
    evidence = [
        *(came(A), second(A, 20.2), went(A, 20.4)),
        *(second(A, 40.0, "default-0"), went(A, 40.5, "default-0", "default-1")),
        *(second(A, 60.0), went(A, 60.5)),
    ]
    random.Random(seed).shuffle(evidence)
    there, whole = ClientHistory(each for each in evidence if evidence_at(each) < 50), ClientHistory(evidence)
    where = [(stay.lane if (stay := whole.stay(A, at)) else None) for at in (10.0, 30.0, 50.0, 70.0)]
    assert where == ["default-0", "default-1", "default-0", "default-1"]
    assert there.lanes_of(A, 50.0) == frozenset({"default-0"})
    assert whole.lanes_of(A, 70.0) == frozenset({"default-1"})
    assert [stay.process for stay in there.present(50.0, "default-0")] == [A]
    # As it says itself, until the server that it left is gone.
    assert [stay.process for stay in there.present(50.0, "default-1")] == [A]


def evidence_at(evidence: Evidence) -> float:
    return evidence.observed_at


def test_a_hot_second_driver_survives_likewise() -> None:
    incident = only(triage([came(A), came(B), second(A, 2.0), *MISALIGNED, *torn(A, B), went(A, 20.1)]))
    assert (incident.lane, pids(incident.survived), pids(incident.victims)) == ("default-0", {A.pid}, {B.pid})


def test_whichever_has_a_second_driver_on_a_lane_may_have_worked_there() -> None:
    """Or a program with one could fault there, and the lane's only client would be accused."""
    clients = [fresh(lane="default-1"), came(A), came(B, lane="default-1"), second(A, 2.0)]
    faulted = [xid(13, 20.010), server("fault_begins", 20.015, lane="default-1"), *torn(A, B, lane="default-1")]
    incident = only(triage([*clients, *faulted]))
    assert (incident.culprit, incident.confidence) == (None, Confidence.UNKNOWN)
    assert (incident.lane, pids(incident.candidates)) == ("default-1", {A.pid, B.pid})
    # Its own work was on the other lane.
    assert pids(incident.victims) == {B.pid}


def test_whichever_has_gone_over_is_a_suspect_where_it_is_and_no_more_where_it_was() -> None:
    later = [xid(13, 40.010), server("fault_begins", 40.015, lane="default-1"), *torn(A, C, at=40.02, lane="default-1")]
    first, incident = triage([*COLD, came(C, 30.0, "default-1"), *later])
    assert pids(first.survived) == {A.pid}
    assert (incident.lane, pids(incident.candidates), pids(incident.victims)) == (
        "default-1",
        {A.pid, C.pid},
        {A.pid, C.pid},
    )
    again = [xid(13, 40.010), server("fault_begins", 40.015), *torn(C, at=40.02)]
    _, incident = triage([*COLD, fresh(25.0), ended(B, 25.0, code=1), came(C, 30.0), *again])
    assert pids(incident.candidates) == {C.pid}


@pytest.mark.parametrize("before", [[], [fresh(20.3)]])
def test_whichever_says_that_it_went_over_is_a_suspect_until_the_server_that_it_left_is_gone(
    before: list[Evidence],
) -> None:
    """It may have kept a socket to that server, which recovered; the lane's next client would be the only suspect."""
    again = [xid(13, 40.010), server("fault_begins", 40.015), *torn(C, at=40.02)]
    _, incident = triage([*COLD, *before, ended(B, 25.0, code=1), came(C, 30.0), *again])
    assert pids(incident.candidates) == {A.pid, C.pid}
    assert pids(incident.victims) == {C.pid}


def test_a_fatal_fault_in_the_queue_of_a_client_that_went_over_is_of_its_new_lane() -> None:
    incident = triage([*COLD, came(C, 30.0, "default-1"), uvm(A, 40.0)])[-1]
    assert (incident.ground, incident.lane, pids(incident.victims)) == (Ground.UVM_QUEUE, "default-1", {C.pid})


def exited(at: float, pid: int = SERVER) -> Evidence:
    return seen(Source.CONTROL_LOG, at, ServerSays("server_exited", pid, None, "default-0"), trust=Trust.HINT)


def ending(at: float) -> Evidence:
    return seen(Source.LANE, at, ServerEnding("default-0", SERVER), trust=Trust.NONE)


def test_the_end_of_a_server_that_the_guard_told_to_end_is_no_incident() -> None:
    incident = only(triage([*COLD, ending(25.0), exited(29.0)]))
    assert incident.fault_class is FaultClass.SM


def test_that_of_another_server_is_one() -> None:
    assert [each.fault_class for each in triage([*COLD, ending(25.0), exited(29.0, SERVER + 1)])] == [
        FaultClass.SM,
        FaultClass.LANE,
    ]
