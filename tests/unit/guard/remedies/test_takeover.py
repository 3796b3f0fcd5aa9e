"""Which lane is lost, and which session goes on: every sign, and what holds whatever the sessions are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.evidence import (
    ClientCame,
    Evidence,
    LaneChanged,
    Observation,
    ProcessEnded,
    ServerSays,
    Source,
    UvmFault,
    Xid,
)
from mpsguard.guard.remedies.takeover import LaneView, lost_lane, session_failovers, stranded, waiting
from mpsguard.linux.identity import ProcessKey
from mpsguard.vault.wire.region import Lease, LeaseRole, SessionKey, SessionRecord

GPU, OTHER_GPU = "0000:18:00", "0000:2a:00"
WORKER, STANDBY, OTHER = ProcessKey(11, 1), ProcessKey(21, 1), ProcessKey(22, 1)
WORK = LaneView("d-0", frozenset({10}), frozenset({WORKER}), frozenset({GPU}))
WAIT = LaneView("d-1", frozenset({20}), frozenset({STANDBY}), frozenset({GPU}))
IDLE = frozenset({STANDBY})


def seen(
    what: Observation, *, source: Source = Source.KERNEL_LOG, process: ProcessKey | None = None, gpu: str | None = GPU
) -> Evidence:
    return Evidence(source=source, observed_at=1.0, what=what, gpu=gpu, process=process)


def uvm_fault(process: ProcessKey, *, fatal: bool = True) -> Evidence:
    return seen(UvmFault(0, "write", "invalid PDE", fatal), source=Source.UVM, process=process)


@pytest.mark.parametrize(
    ("evidence", "lane"),
    [
        (uvm_fault(WORKER), "d-0"),
        (uvm_fault(STANDBY), "d-1"),
        (uvm_fault(WORKER, fatal=False), None),
        (uvm_fault(ProcessKey(99, 9)), None),
        (seen(Xid(13, None, "Graphics SM Warp Exception")), "d-0"),
        (seen(Xid(13, None, ""), gpu=OTHER_GPU), None),
        (seen(Xid(13, None, ""), source=Source.NVML), None),
        (seen(Xid(31, None, ""), source=Source.NVML), None),
        (seen(Xid(43, 10, "")), "d-0"),
        (seen(Xid(43, 20, "")), "d-1"),
        (seen(Xid(31, WORKER.pid, "")), "d-0"),
        (seen(Xid(31, 99, "")), None),
        (seen(Xid(45, 10, "")), None),
        (seen(ServerSays("fault_begins", 10), source=Source.SERVER_LOG), "d-0"),
        (seen(ServerSays("server_exited", 20), source=Source.CONTROL_LOG), "d-1"),
        (seen(ServerSays("fault_ends", 10), source=Source.SERVER_LOG), None),
        (seen(ServerSays("teardown", 10, 11), source=Source.SERVER_LOG), None),
        (seen(LaneChanged("d", "d-0", "FAULT", ""), source=Source.LANE), "d-0"),
        (seen(LaneChanged("d", "d-0", "DOWN", ""), source=Source.LANE), "d-0"),
        (seen(LaneChanged("d", "d-0", "UNKNOWN", ""), source=Source.LANE), None),
        (seen(ClientCame("d", "d-0"), source=Source.PROCESSES, process=WORKER), None),
        (seen(ProcessEnded(None, 9, False, None), source=Source.PROCESSES, process=WORKER), None),
    ],
)
def test_what_each_sign_tells(evidence: Evidence, lane: str | None) -> None:
    assert lost_lane(evidence, [WORK, WAIT], IDLE) == lane


def test_an_xid_without_a_pid_tells_nothing_where_two_lanes_have_work() -> None:
    assert lost_lane(seen(Xid(13, None, "")), [WORK, WAIT], frozenset()) is None
    assert lost_lane(seen(Xid(13, None, "")), [WAIT], IDLE) is None
    # A client repeats its lost work outside of MPS: the line may be about that.
    assert lost_lane(seen(Xid(13, None, "")), [WORK, WAIT], IDLE, alone=True) is None
    assert lost_lane(seen(Xid(43, WORKER.pid, "")), [WORK, WAIT], IDLE, alone=True) == "d-0"


def test_a_lane_with_unknown_gpus_may_be_meant() -> None:
    assert lost_lane(seen(Xid(13, None, ""), gpu=OTHER_GPU), [LaneView("d-0", frozenset(), WORK.clients, None)], IDLE)


def test_a_fault_that_the_module_keeps_with_its_client_strikes_no_lane() -> None:
    assert lost_lane(uvm_fault(WORKER), [WORK, WAIT], IDLE, contained=True) is None
    assert lost_lane(seen(Xid(31, WORKER.pid, "")), [WORK, WAIT], IDLE, contained=True) == "d-0"


PROCESSES = [WORKER, STANDBY, OTHER]
LANES = ("d-0", "d-1", None)


@st.composite
def sessions(draw: st.DrawFn) -> SessionRecord:
    readers = tuple(
        Lease(token, draw(st.sampled_from(PROCESSES)), 0, role, ready=draw(st.booleans()))
        for token, role in enumerate(
            draw(st.lists(st.sampled_from([LeaseRole.READER, LeaseRole.STANDBY, LeaseRole.FENCED]))), 2
        )
    )
    writer = draw(st.none() | st.sampled_from(PROCESSES).map(lambda process: Lease(1, process, 0, LeaseRole.WRITER)))
    return SessionRecord(SessionKey(0, draw(st.sampled_from("abc"))), 1, 1, writer=writer, readers=readers)


@given(st.lists(sessions(), unique_by=lambda session: session.key), st.lists(st.sampled_from(LANES), min_size=3))
def test_only_an_affected_lane_is_left_and_only_for_a_candidate_that_is_ready_elsewhere(
    found: list[SessionRecord], places: list[str | None]
) -> None:
    where = dict(zip(PROCESSES, places, strict=False))
    taken, left = session_failovers("d-0", found, where.get)
    by_key = {session.key: session for session in found}
    struck_keys = {session.key for session in found if session.writer and where.get(session.writer.process) == "d-0"}
    assert {each.session for each in taken} | set(left) == struck_keys
    assert not {each.session for each in taken} & set(left)
    tokens = {(each.session, each.token) for each in taken}
    assert not tokens & set(stranded("d-0", found, where.get))
    for each in taken:
        lease = by_key[each.session].lease(each.token)
        assert lease is not None
        assert (lease.role, lease.ready, lease.process) == (LeaseRole.STANDBY, True, each.candidate)
        assert where.get(lease.process) != "d-0"
        assert lease.process in waiting(found)
    for key in left:
        assert not [
            lease
            for lease in by_key[key].readers
            if lease.role is LeaseRole.STANDBY and lease.ready and where.get(lease.process) != "d-0"
        ]
