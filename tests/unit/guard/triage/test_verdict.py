"""Verdicts: from the signatures measured on an H200 (driver 580.159.04), in any order of arrival."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.evidence import (
    ClientCame,
    DeviceHealth,
    Evidence,
    LaneChanged,
    Lost,
    Observation,
    ProcessEnded,
    ServerSays,
    Source,
    Trust,
    UvmFault,
    Xid,
    ZoneHit,
)
from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident, Suspect
from mpsguard.guard.triage.orphaned_work import SERVER_LAG
from mpsguard.guard.triage.verdict import triage
from mpsguard.linux.identity import ProcessKey

A, B, C, D, E = (ProcessKey(pid, pid * 10) for pid in (101, 102, 103, 104, 105))
GPU, OTHER_GPU = "0000:18:00", "0000:2a:00"
SERVER = 99


def seen(
    source: Source,
    at: float,
    what: Observation,
    process: ProcessKey | None = None,
    *,
    gpu: str | None = None,
    trust: Trust = Trust.NONE,
    serial: str = "",
) -> Evidence:
    return Evidence(
        source, observed_at=at + 0.001, what=what, happened_at=at, process=process, gpu=gpu, trust=trust, serial=serial
    )


def came(process: ProcessKey, at: float = 1.0, lane: str = "default-0") -> Evidence:
    return seen(Source.PROCESSES, at, ClientCame("default", lane), process, trust=Trust.PROOF)


def uvm(process: ProcessKey, at: float, *, fatal: bool = True, gpu: str | None = None) -> Evidence:
    return seen(Source.UVM, at, UvmFault(0x7E0000000000, "write", "pde", fatal), process, gpu=gpu, trust=Trust.PROOF)


def xid(number: int, at: float, pid: int | None = None, gpu: str = GPU) -> Evidence:
    return seen(Source.KERNEL_LOG, at, Xid(number, pid, "..."), gpu=gpu, serial=f"kmsg:{at}:{number}:{gpu}")


def server(what: str, at: float, client: ProcessKey | None = None, lane: str | None = "default-0") -> Evidence:
    said = ServerSays(what, SERVER, client.pid if client else None, lane)
    return seen(Source.SERVER_LOG, at, said, trust=Trust.HINT)


def ended(
    process: ProcessKey, at: float, *, code: int | None = None, signal: int | None = None, oom: bool = False
) -> Evidence:
    return seen(Source.PROCESSES, at, ProcessEnded(code, signal, oom, None), process, trust=Trust.PROOF)


def fresh(at: float = 0.5, lane: str = "default-0") -> Evidence:
    """The lane has no server yet: the next one is new."""
    return seen(Source.LANE, at, LaneChanged("default", lane, "ACTIVE", "no server yet", ()), trust=Trust.PROOF)


CLIENTS = [came(A), came(B), came(C)]
MMU = [uvm(A, 10.002), server("fault_begins", 10.003), xid(31, 10.130, B.pid), xid(43, 10.131, SERVER)]
MISALIGNED = [xid(13, 20.010), xid(43, 20.012, SERVER), server("fault_begins", 20.015)]
TRAP = [xid(43, 30.010, SERVER), server("fault_begins", 30.015), server("sticky", 30.016, A)]
TORN = [server("teardown", 40.151, A), server("teardown", 40.151, C), server("culprit", 40.151, A)]
KILLED = [ended(B, 40.230, signal=9), xid(31, 40.150, C.pid), server("fault_begins", 40.151), *TORN]


def only(incidents: Sequence[Incident]) -> Incident:
    assert len(incidents) == 1, [incident.reason for incident in incidents]
    return incidents[0]


def pids(suspects: Sequence[Suspect]) -> set[int]:
    return {suspect.pid for suspect in suspects}


def test_a_client_on_another_lane_is_neither_suspect_nor_victim() -> None:
    standbys = [came(D, lane="default-1"), came(E, lane="default-1")]
    teardown = [server("teardown", 20.015, client) for client in (A, B, C)]
    # The driver's own line names no lane: all clients are candidates, until the server says which it tears down.
    before = only(triage([*CLIENTS, *standbys, xid(13, 20.010)]))
    assert (before.lane, pids(before.candidates)) == (None, {101, 102, 103, 104, 105})
    incident = only(triage([*CLIENTS, *standbys, *MISALIGNED, *teardown]))
    assert (incident.lane, pids(incident.candidates), pids(incident.victims)) == (
        "default-0",
        {101, 102, 103},
        {101, 102, 103},
    )


def test_the_only_client_of_the_lane_is_likely_whichever_waits_on_another_one() -> None:
    clients = [fresh(), came(A), came(B, lane="default-1")]
    incident = only(triage([*clients, *MISALIGNED, server("teardown", 20.015, A)]))
    assert incident.culprit is not None
    assert (incident.culprit.pid, incident.confidence, incident.victims) == (A.pid, Confidence.LIKELY, ())
    assert incident.ground is Ground.ONLY_CLIENT


def test_a_memory_fault_hits_its_own_lane() -> None:
    incident = only(triage([came(A), came(B), came(C, lane="default-1"), uvm(A, 10.002)]))
    assert pids(incident.victims) == {B.pid}


def test_faults_of_two_lanes_at_once_hit_both() -> None:
    both = [server("teardown", 20.015, A), server("teardown", 20.015, C, "default-1")]
    incident = only(triage([came(A), came(B), came(C, lane="default-1"), *MISALIGNED, *both]))
    assert pids(incident.victims) == {101, 102, 103}


def test_a_device_in_trouble_hits_all_lanes() -> None:
    trouble = seen(Source.NVML, 20.0, DeviceHealth("ecc", 1, True), gpu=GPU)
    incident = only(triage([came(A), came(B, lane="default-1"), trouble, server("teardown", 20.1, A)]))
    assert pids(incident.victims) == {A.pid, B.pid}


def test_a_memory_fault_is_proved_by_the_uvm_queue_and_by_it_alone_in_time() -> None:
    early = only(triage([*CLIENTS, MMU[0]]))
    assert (early.fault_class, early.confidence) == (FaultClass.MMU, Confidence.PROVEN)
    assert early.culprit is not None
    assert early.culprit.process == A
    whole = only(triage([*CLIENTS, *MMU]))
    assert whole.culprit == early.culprit
    assert whole.xids == (31, 43)
    assert pids(whole.victims) == {B.pid, C.pid}


def test_the_kernels_own_pid_accuses_no_client() -> None:
    incident = only(triage([*CLIENTS, xid(31, 10.130, B.pid), server("fault_begins", 10.131)]))
    assert incident.culprit is None
    assert incident.confidence is Confidence.UNKNOWN
    assert pids(incident.candidates) == {A.pid, B.pid, C.pid}


def test_the_servers_own_word_accuses_no_client_either() -> None:
    """It named an innocent client in 24 of 27 faults where the UVM queue had proof."""
    incident = only(triage([*CLIENTS, xid(31, 10.1, B.pid), server("fault_begins", 10.0), server("culprit", 10.0, C)]))
    assert incident.culprit is None
    assert pids(incident.candidates) == {A.pid, B.pid, C.pid}


@pytest.mark.parametrize("fault", [MISALIGNED, TRAP])
def test_an_sm_fault_has_candidates_and_no_culprit(fault: list[Evidence]) -> None:
    incident = only(triage([*CLIENTS, *fault]))
    assert incident.fault_class is FaultClass.SM
    assert incident.culprit is None
    assert pids(incident.candidates) == {A.pid, B.pid, C.pid}
    assert incident.reason


@pytest.mark.parametrize("fault", [MISALIGNED, TRAP])
def test_the_only_client_that_the_server_ever_had_is_likely_and_no_more(fault: list[Evidence]) -> None:
    incident = only(triage([fresh(), came(A), *fault]))
    assert incident.culprit is not None
    assert (incident.culprit.process, incident.confidence) == (A, Confidence.LIKELY)


STRANGER = 4711
DOUBTS: dict[str, tuple[list[Evidence], list[Evidence]]] = {
    "it is not known what the server had before": ([came(A)], MISALIGNED),
    "another client has ended on the same server": ([fresh(), came(A), came(B), ended(B, 5.0, code=0)], MISALIGNED),
    "no sign of the server's": ([fresh(), came(A)], [xid(13, 20.010)]),
    "a sign of another lane's server": ([fresh(), came(A)], [xid(13, 20.010), server("fault_begins", 20.02, lane="x")]),
    "a fault on another GPU": ([fresh(), came(A)], [*MISALIGNED, xid(13, 20.011, gpu=OTHER_GPU)]),
    "a stranger in the kernel's line": ([fresh(), came(A)], [*MISALIGNED, xid(43, 20.013, STRANGER)]),
    "lines of the kernel log are lost": ([fresh(), came(A)], [*MISALIGNED, seen(Source.KERNEL_LOG, 20.1, Lost(-1))]),
}


@pytest.mark.parametrize(("clients", "fault"), DOUBTS.values(), ids=list(DOUBTS))
def test_elimination_names_no_client_where_another_process_may_have_done_it(
    clients: list[Evidence], fault: list[Evidence]
) -> None:
    for incident in triage([*clients, *fault]):
        assert incident.culprit is None


def test_elimination_waits_for_the_kernel_log() -> None:
    assert only(triage([fresh(), came(A), *MISALIGNED], now=20.1)).culprit is None


@pytest.mark.parametrize("fault", [MISALIGNED, TRAP])
def test_a_client_that_was_alone_for_a_moment_only_is_not_accused(fault: list[Evidence]) -> None:
    """The server may tell of a fault when its clients have seen it, and some of them have ended."""
    left = [ended(each, fault[0].observed_at - 0.1, code=3) for each in (B, C)]
    incident = only(triage([*CLIENTS, *left, *fault]))
    assert incident.culprit is None
    assert pids(incident.candidates) == {A.pid, B.pid, C.pid}


def test_a_crash_with_work_in_flight_is_told_from_one_without() -> None:
    deadly = only(triage([*CLIENTS, *KILLED]))
    assert (deadly.fault_class, deadly.confidence) == (FaultClass.PROCESS, Confidence.LIKELY)
    assert deadly.culprit is not None
    assert deadly.culprit.process == B
    assert pids(deadly.victims) == {A.pid, C.pid}
    assert deadly.work_in_flight is True
    assert only(triage([*CLIENTS, KILLED[0]], now=40.1)).work_in_flight is None
    idle = only(triage([*CLIENTS, KILLED[0]], now=41.0))
    assert idle.work_in_flight is False
    assert (idle.fault_class, idle.confidence) == (FaultClass.PROCESS, Confidence.PROVEN)
    assert idle.victims == ()


def test_an_orderly_end_is_no_incident_and_an_exit_with_work_in_flight_is() -> None:
    assert triage([*CLIENTS, ended(A, 10.0, code=0)]) == ()
    assert triage([*CLIENTS, ended(A, 10.0, code=3)]) == ()
    torn = [server("teardown", 10.151, B), server("teardown", 10.151, C)]
    signature = [xid(31, 10.15, B.pid), server("fault_begins", 10.151), *torn, ended(A, 10.22, code=0)]
    incident = only(triage([*CLIENTS, *signature]))
    assert incident.culprit is not None
    assert (incident.fault_class, incident.culprit.process) == (FaultClass.PROCESS, A)


def test_two_ends_before_a_fault_are_two_candidates() -> None:
    torn = [server("teardown", 40.151, C)]
    signature = [xid(31, 40.150, C.pid), server("fault_begins", 40.151), *torn]
    incident = only(triage([*CLIENTS, *signature, ended(A, 40.22, signal=9), ended(B, 40.23, signal=9)]))
    assert incident.culprit is None
    assert pids(incident.candidates) == {A.pid, B.pid}


def test_a_client_that_left_in_order_just_before_anothers_trap_is_not_accused() -> None:
    leaver = ended(B, 29.8, code=0)
    torn = [server("teardown", 30.015, each) for each in (A, C)]
    for evidence in ([*CLIENTS, leaver, *TRAP, *torn], [*CLIENTS, leaver, *TRAP[1:], *torn]):
        for now in (30.016, 30.05, 30.2):
            for incident in triage(evidence, now):
                assert incident.culprit is None


def test_a_victim_that_aborts_later_is_no_incident_of_its_own() -> None:
    aborted = [ended(B, 12.5, signal=6), ended(C, 14.0, signal=6)]
    assert only(triage([*CLIENTS, *MMU, *aborted])).fault_class is FaultClass.MMU


def test_echoes_alone_are_nothing() -> None:
    assert triage([*CLIENTS, xid(43, 10.0, SERVER), xid(45, 10.1, A.pid), xid(45, 10.2, B.pid)]) == ()
    assert triage([*CLIENTS, uvm(A, 10.0, fatal=False)]) == ()
    assert triage([*CLIENTS, seen(Source.KERNEL_LOG, 5.0, Lost(-1))]) == ()


def test_two_faults_at_once_are_two_incidents() -> None:
    incidents = triage([*CLIENTS, *MMU, uvm(C, 10.0025)])
    assert [incident.culprit.process for incident in incidents if incident.culprit] == [A, C]
    assert {incident.confidence for incident in incidents} == {Confidence.PROVEN}


def test_two_faults_in_a_second_are_told_apart_once_the_first_is_over() -> None:
    """As seen: the victims of the first leave, the server recovers, a newcomer is killed with work in flight."""
    first = [server("fault_begins", 10.0), xid(43, 10.005, SERVER), server("fault_ends", 10.422)]
    leaving = [ended(each, 10.46, code=3) for each in (A, B, C)]
    second = [came(D, 10.52), came(E, 10.53), ended(D, 10.736, signal=9), server("fault_begins", 10.883)]
    second += [server("teardown", 10.883, E), server("fault_ends", 10.884)]
    incidents = triage([*CLIENTS, *first, *leaving, *second])
    assert [incident.fault_class for incident in incidents] == [FaultClass.SM, FaultClass.PROCESS]
    assert incidents[0].culprit is None
    assert incidents[1].culprit is not None
    assert incidents[1].culprit.process == D


def test_two_gpus_have_two_incidents() -> None:
    incidents = triage([*CLIENTS, xid(13, 20.010), xid(13, 20.011, gpu=OTHER_GPU), server("fault_begins", 20.015)])
    assert {incident.gpu for incident in incidents} == {GPU, OTHER_GPU}


def test_two_memory_faults_at_once_on_two_gpus_keep_their_gpus_and_their_lines() -> None:
    one = [uvm(A, 10.0020, gpu=GPU), xid(31, 10.130, C.pid, GPU), xid(43, 10.131, SERVER, GPU)]
    other = [uvm(B, 10.0021, gpu=OTHER_GPU), xid(31, 10.128, C.pid, OTHER_GPU)]
    found = triage([*CLIENTS, *one, *other, server("fault_begins", 10.003)])
    assert [(incident.culprit and incident.culprit.process, incident.gpu, incident.xids) for incident in found] == [
        (A, GPU, (31, 43)),
        (B, OTHER_GPU, (31,)),
    ]
    assert {incident.fault_class for incident in found} == {FaultClass.MMU}


def test_a_stranger_is_not_blamed_on_clients() -> None:
    incident = only(triage([*CLIENTS, xid(31, 10.0, 4711)]))
    assert incident.culprit is not None
    assert (incident.culprit.pid, incident.culprit.client) == (4711, False)
    assert incident.victims == ()


@pytest.mark.parametrize("number", [13, 31])
def test_a_stranger_is_not_named_while_the_server_may_still_speak(number: int) -> None:
    """A first Xid 13 named a process that was no client, and 5 ms later the server told of an SM fault (H200)."""
    line = xid(number, 10.0, 4711)
    early = only(triage([*CLIENTS, line], 10.0 + SERVER_LAG / 2))
    assert (early.confidence, early.culprit, early.candidates) == (Confidence.UNKNOWN, None, ())
    settled = only(triage([*CLIENTS, line], 10.0 + SERVER_LAG))
    assert settled.culprit is not None
    assert settled.culprit.pid == 4711
    alone = only(triage([line], 10.0))
    assert alone.culprit == settled.culprit


def test_a_lane_that_dies_has_no_culprit() -> None:
    down = seen(Source.LANE, 10.0, LaneChanged("default", "default-0", "DOWN", "control daemon 5 ended"))
    incident = only(triage([*CLIENTS, down, ended(A, 10.2, code=3), ended(B, 10.3, signal=6)]))
    assert (incident.fault_class, incident.culprit) == (FaultClass.LANE, None)
    assert pids(incident.victims) == {A.pid, B.pid, C.pid}


def test_a_sick_device_has_no_culprit() -> None:
    for sign in (xid(79, 10.0), seen(Source.NVML, 10.0, DeviceHealth("ecc_double_bit", 1, True), gpu=GPU)):
        incident = only(triage([*CLIENTS, sign, xid(31, 10.1, B.pid), server("fault_begins", 10.2)]))
        assert (incident.fault_class, incident.culprit) == (FaultClass.DEVICE, None)


SIGNATURES: list[list[Evidence]] = [MMU, MISALIGNED, TRAP, KILLED, [ended(C, 60.0, signal=11)], [xid(79, 80.0)]]


@given(st.data())
def test_the_order_of_arrival_never_changes_the_verdict(data: st.DataObject) -> None:
    signatures = data.draw(st.lists(st.sampled_from(range(len(SIGNATURES))), unique=True, min_size=1))
    evidence = [*CLIENTS, *(each for signature in signatures for each in SIGNATURES[signature])]
    shuffled = data.draw(st.permutations(evidence))
    repeated = data.draw(st.lists(st.sampled_from(evidence), max_size=4))
    assert triage([*shuffled, *repeated]) == triage(evidence)


@given(st.permutations(MMU), st.floats(-0.05, 0.05))
def test_never_an_innocent_whatever_is_missing_or_late(arrival: list[Evidence], skew: float) -> None:
    """Every prefix of what arrives, with the kernel log's clock off by up to 50 ms: the culprit or none."""
    late = [
        msgspec.structs.replace(each, happened_at=(each.happened_at or 0) + skew)
        if each.source is Source.KERNEL_LOG
        else each
        for each in arrival
    ]
    for length in range(len(late) + 1):
        for incident in triage([*CLIENTS, *late[:length]]):
            assert incident.culprit is None or incident.culprit.process == A


@given(st.lists(st.sampled_from([each for signature in SIGNATURES for each in signature]), max_size=12))
def test_no_evidence_whatever_breaks_triage(evidence: list[Evidence]) -> None:
    for incident in triage([*CLIENTS, *evidence]):
        assert incident.reason
        assert incident.culprit is None or incident.culprit not in incident.victims
        assert msgspec.json.decode(msgspec.json.encode(incident), type=Incident) == incident


def test_without_the_kernel_log_a_client_that_may_have_died_of_its_error_is_not_accused() -> None:
    """An innocent that was quick to leave stands in no list of the server's either."""
    torn = [server("fault_begins", 30.015), server("teardown", 30.016, A), server("teardown", 30.016, C)]
    for end in (ended(B, 30.1, code=3), ended(B, 30.1, signal=6)):
        (incident,) = triage([*CLIENTS, *torn, end])
        assert incident.culprit is None
    (killed,) = triage([*CLIENTS, *torn, ended(B, 30.1, signal=9)])
    assert killed.culprit is not None
    assert killed.culprit.process == B


def zone(process: ProcessKey, at: float) -> Evidence:
    hit = ZoneHit(0x7F0000400010, "write", region=3, part="back zone", beyond=17, size=4 << 20)
    return seen(Source.UVM, at, hit, process, trust=Trust.PROOF)


def test_what_a_zone_absorbed_has_a_culprit_and_no_victim_and_excuses_nothing_beside_it() -> None:
    incident = only(triage([*CLIENTS, zone(B, 10.0)]))
    assert incident.culprit is not None
    assert (incident.fault_class, incident.confidence) == (FaultClass.MMU, Confidence.PROVEN)
    assert (incident.culprit.process, incident.victims) == (B, ())
    assert "byte 17 behind the end of its allocation 3" in incident.reason
    both = triage([*CLIENTS, zone(B, 10.0), *MMU])
    assert {one.culprit.process for one in both if one.culprit} == {A, B}
    crash = triage([*CLIENTS, zone(B, 10.0), ended(C, 10.01, signal=9)])
    assert {one.culprit.process for one in crash if one.culprit} == {B, C}


def test_a_server_that_is_killed_is_an_incident_though_its_clients_end_before_the_log_says_so() -> None:
    # As on an H200: 65 and 27 ms before.
    ends = [ended(A, 29.935, code=3), ended(B, 29.973, code=3)]
    assert only(triage([came(A), came(B), *ends, server("server_exited", 30.0)])).fault_class is FaultClass.LANE


def test_a_server_that_ends_after_its_clients_have_finished_is_none() -> None:
    assert triage([came(A), ended(A, 29.990, code=0), server("server_exited", 30.0)]) == ()
