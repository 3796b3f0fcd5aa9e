"""Verdicts after repetitions alone: a client's word accuses itself at most, and clears no client and no neighbour."""

import random
from collections.abc import Iterable, Sequence

import pytest

from mpsguard.guard.evidence import Evidence, LogRead, Source, WorkRepeated, Xid
from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident
from mpsguard.guard.triage import grounds
from mpsguard.guard.triage.rolling import RollingTriage
from mpsguard.guard.triage.verdict import triage
from mpsguard.linux.identity import ProcessKey
from tests.unit.guard.triage.test_second_drivers import second, torn, went
from tests.unit.guard.triage.test_verdict import CLIENTS, GPU, SERVER, TRAP, A, B, C, came, ended, pids, server, xid


def says(process: ProcessKey, outcome: str, at: float) -> Evidence:
    return Evidence(source=Source.PRELOAD, observed_at=at, what=WorkRepeated(outcome), process=process)


def sm(at: float, pid: int | None, exception: str) -> list[Evidence]:
    """The kernel's lines of an SM fault: the first one of the exception, without a pid."""
    text = f"Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): {exception}"
    line = Evidence(Source.KERNEL_LOG, at + 0.001, Xid(13, None, text), happened_at=at, gpu=GPU, serial=f"kmsg:{at}")
    return [line, xid(43, at + 0.002, pid)]


def fault(at: float, exception: str = "Misaligned Address", lane: str = "default-0") -> list[Evidence]:
    return [*sm(at + 0.01, SERVER, exception), server("fault_begins", at + 0.015, lane=lane)]


def read(at: float, since: float = 0.0) -> Evidence:
    """The kernel log has told all since then."""
    return Evidence(source=Source.KERNEL_LOG, observed_at=at, what=LogRead(since), serial=f"kmsg:read:{at}")


def repeated(process: ProcessKey, outcome: str, at: float, *lines: Evidence) -> list[Evidence]:
    return [says(process, "under_way", at), *lines, says(process, outcome, at + 0.4), read(at + 0.41)]


LOST = [*CLIENTS, *fault(20.0), *torn(A, B, C)]
AGAIN = sm(20.8, A.pid, "Misaligned Address")


def by_victims(incidents: Sequence[Incident]) -> tuple[Incident, Incident]:
    """The incident of the lane, and that of the repetition."""
    (lane,) = [each for each in incidents if each.victims]
    (alone,) = [each for each in incidents if not each.victims]
    return lane, alone


@pytest.mark.parametrize("seed", range(6))
def test_a_repetition_that_faults_again_proves_the_culprit_in_whatever_order_that_is_heard(seed: int) -> None:
    evidence = [*LOST, *repeated(A, "faulted", 20.5, *AGAIN)]
    random.Random(seed).shuffle(evidence)
    lane, alone = by_victims(triage(evidence))
    for incident in (lane, alone):
        assert incident.culprit is not None
        assert (incident.culprit.pid, incident.ground) == (A.pid, Ground.REPEATED_ALONE)
        assert (incident.confidence, incident.fault_class) == (Confidence.PROVEN, FaultClass.SM)
        assert "faulted again when repeated alone" in incident.reason
    assert (lane.lane, pids(lane.victims), lane.candidates) == ("default-0", {B.pid, C.pid}, ())
    assert {type(each.what).__name__ for each in lane.evidence} >= {"WorkRepeated", "Xid", "ServerSays"}


def test_outside_of_mps_the_last_line_of_an_exception_names_the_process() -> None:
    """As seen on an H100 for a misaligned address, while others repeated their work, too: no Xid 43 there."""
    exception, _ = sm(20.8, A.pid, "Misaligned Address")
    names = Xid(13, A.pid, "Graphics Exception: channel 0x00000064")
    line = Evidence(Source.KERNEL_LOG, 20.803, names, gpu=GPU, serial="k")
    others = [says(B, "under_way", 20.5), says(B, "completed", 21.4)]
    lane, alone = by_victims(triage([*LOST, *others, *repeated(A, "faulted", 20.5, exception, line)]))
    for incident in (lane, alone):
        assert incident.culprit is not None
        assert (incident.culprit.pid, incident.ground) == (A.pid, Ground.REPEATED_ALONE)


def kernel(at: float, process: ProcessKey, text: str) -> Evidence:
    return Evidence(Source.KERNEL_LOG, at, Xid(13, process.pid, text), gpu=GPU, serial=f"k{at}")


CHANNEL = "Graphics Exception: channel 0x0000005f, Class 0000cbc0, Offset 00000000, Data 00000000"


@pytest.mark.parametrize("outcome", ["completed", "faulted"])
def test_the_lines_of_an_sm_may_have_the_pid_of_another_and_the_channels_line_has_its_owners(outcome: str) -> None:
    """The lines of an H100 (580.159.04) for a misaligned address of A: with the pid of B but for the last."""
    lines = [
        kernel(20.8, B, "Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address"),
        kernel(20.8015, B, "Graphics Exception: ESR 0x519730=0x501000f 0x519734=0x0 0x519728=0x1f81fb60"),
        kernel(20.803, A, CHANNEL),
    ]
    words = [says(B, "under_way", 20.5), says(B, outcome, 21.4)]
    incidents = triage([*LOST, *words, *repeated(A, "faulted", 20.5, *lines), read(21.5)])
    named = [each.culprit.pid for each in incidents if each.culprit is not None]
    proven = [each for each in incidents if each.confidence is Confidence.PROVEN]
    assert set(named) == {A.pid}
    assert {each.ground for each in proven} == {Ground.REPEATED_ALONE}
    assert [bool(each.victims) for each in proven].count(True) == 1
    assert not any(B.pid in pids(each.candidates) for each in incidents if not each.victims)


def test_two_that_the_kernel_names_at_once_outside_of_mps_are_not_proven() -> None:
    """Which of their channels the lines without an owner are about is not known."""
    exception, _ = sm(20.8, A.pid, "Misaligned Address")
    lines = [
        kernel(20.802, B, CHANNEL),
        kernel(20.803, A, CHANNEL),
    ]
    ends = [says(A, "faulted", 20.9), says(B, "faulted", 20.95), read(21.0)]
    evidence = [*LOST, says(A, "under_way", 20.5), says(B, "under_way", 20.5), exception, *lines, *ends]
    for incident in triage(evidence):
        assert incident.confidence is not Confidence.PROVEN


def test_a_fault_of_a_stranger_and_a_forged_log_are_no_fault_of_the_lane() -> None:
    """A client forges the server's lines while a process outside of MPS faults; a real one comes later."""
    forged = [xid(43, 14.0, 4711), server("fault_begins", 14.01), server("sticky", 14.01)]
    again = repeated(A, "faulted", 30.6, xid(43, 30.8, A.pid))
    incidents = triage([*CLIENTS, *forged, *TRAP, *torn(A, B, C, at=30.016), *again])
    assert [each.confidence for each in incidents if each.began < 15.0] == [Confidence.UNKNOWN]


def test_a_fault_of_which_the_lane_is_not_known_has_no_culprit_by_a_later_repetition() -> None:
    """The client was on another lane, where a fault came later."""
    unknown = [*TRAP, server("teardown", 30.016, lane="default-1"), *torn(A, B, C, at=30.016)]
    evidence = [*CLIENTS, *unknown, *repeated(A, "faulted", 30.6, xid(43, 30.8, A.pid))]
    lane, _ = by_victims(triage(evidence))
    assert (lane.culprit, lane.confidence) == (None, Confidence.UNKNOWN)


def test_a_trap_has_one_line_each_time() -> None:
    evidence = [*CLIENTS, *TRAP, *torn(A, B, C, at=30.016), *repeated(A, "faulted", 30.6, xid(43, 30.8, A.pid))]
    lane, _ = by_victims(triage(evidence))
    assert lane.ground is Ground.REPEATED_ALONE


def test_a_repetition_right_behind_the_fault_is_not_taken_for_a_part_of_it() -> None:
    quick = repeated(A, "faulted", 20.15, *sm(20.25, A.pid, "Misaligned Address"))
    lane, alone = by_victims(triage([*LOST, *quick]))
    assert (lane.ground, alone.ground) == (Ground.REPEATED_ALONE, Ground.REPEATED_ALONE)
    assert alone.began == pytest.approx(20.25)


@pytest.mark.parametrize(
    "lines", [sm(20.8, A.pid, "Illegal Instruction Encoding"), [xid(43, 20.8, A.pid)], [xid(31, 20.8, A.pid)]]
)
def test_another_fault_than_that_of_the_lane_proves_nothing_of_that(lines: list[Evidence]) -> None:
    """As where an address in memory is another one in the copy that repeats: an innocent program."""
    lane, _ = by_victims(triage([*LOST, *repeated(A, "faulted", 20.5, *lines)], now=20.95))
    assert (lane.culprit, lane.confidence, pids(lane.candidates)) == (None, Confidence.UNKNOWN, {A.pid, B.pid, C.pid})


def test_a_kernel_log_with_a_gap_proves_nothing_of_the_lanes_fault() -> None:
    """The line that is missing may be the one in which the two differ."""
    gap = [says(A, "under_way", 20.5), *AGAIN, says(A, "faulted", 20.9), read(20.91, since=20.4)]
    lane, alone = by_victims(triage([*LOST, *gap]))
    assert (lane.confidence, alone.ground) == (Confidence.UNKNOWN, Ground.REPEATED_ALONE_WORD)


def test_the_reason_tells_of_another_fault() -> None:
    other = repeated(A, "faulted", 20.5, *sm(20.8, A.pid, "Illegal Instruction Encoding"))
    lane, alone = by_victims(triage([*LOST, *other]))
    assert f"process {A.pid} faulted when repeated alone, in another way" in lane.reason
    # No process is ended on it.
    assert alone.ground is Ground.REPEATED_ALONE_WORD


def test_its_word_alone_is_likely_once_the_kernels_line_would_have_come() -> None:
    evidence = [*LOST, *repeated(A, "faulted", 20.5)]
    (early,) = triage(evidence, now=20.91)
    assert early.confidence is Confidence.UNKNOWN
    (later,) = triage(evidence)
    assert later.culprit is not None
    assert (later.culprit.pid, later.ground, later.confidence) == (
        A.pid,
        Ground.REPEATED_ALONE_WORD,
        Confidence.LIKELY,
    )
    assert not grounds.GROUNDS[Ground.REPEATED_ALONE_WORD].may_act


@pytest.mark.parametrize("outcome", ["under_way", "no_result", "completed"])
def test_the_kernels_line_without_the_word_accuses_no_process_and_hits_none(outcome: str) -> None:
    lane, alone = by_victims(triage([*LOST, *repeated(A, outcome, 20.5, *AGAIN)]))
    assert (lane.culprit, alone.culprit) == (None, None)
    assert pids(alone.candidates) == {A.pid}


def test_no_number_of_completed_repetitions_accuses_the_client_that_is_left() -> None:
    """All of them could be one user's, and the last one another's."""
    (incident,) = triage([*LOST, *repeated(A, "completed", 20.5), *repeated(B, "completed", 20.6)])
    assert (incident.culprit, incident.confidence) == (None, Confidence.UNKNOWN)
    assert pids(incident.candidates) == {A.pid, B.pid, C.pid}
    assert "2 of them say that they repeated their work alone without a fault" in incident.reason


def test_the_only_client_is_proven_by_its_repetition_and_stays_likely_without() -> None:
    evidence = [came(A), *fault(20.0), *torn(A)]
    alone = [*evidence, *repeated(A, "faulted", 20.5, *AGAIN)]
    assert all(each.ground is Ground.REPEATED_ALONE for each in triage(alone))


def test_two_that_fault_again_are_both_named() -> None:
    both = [
        *repeated(A, "faulted", 20.5, *sm(20.8, A.pid, "Misaligned Address")),
        *repeated(B, "faulted", 21.5, *sm(21.8, B.pid, "Misaligned Address")),
    ]
    lane = [each for each in triage([*LOST, *both]) if each.victims]
    assert {each.culprit.pid for each in lane if each.culprit is not None} == {A.pid, B.pid}


def test_a_fault_of_the_other_lane_meanwhile_is_that_lanes() -> None:
    """Their lines are milliseconds apart."""
    there = [*fault(21.79, lane="default-1"), *torn(C, at=21.806, lane="default-1")]
    evidence = [came(A), came(B), came(C, lane="default-1"), *fault(20.0), *torn(A, B)]
    found = triage([*evidence, *repeated(A, "faulted", 21.6, *sm(21.9, A.pid, "Misaligned Address")), *there])
    assert [(each.lane, pids(each.victims)) for each in found if each.victims] == [
        ("default-0", {B.pid}),
        ("default-1", {C.pid}),
    ]
    assert [each.culprit.pid for each in found if each.culprit is not None] == [A.pid, A.pid]


def test_a_later_fault_of_its_old_lane_is_none_of_its() -> None:
    """It lost its work by the first one."""
    late = [came(ProcessKey(107, 1070), 24.0), *fault(25.0), *torn(A, at=25.016)]
    evidence = [*LOST, ended(B, 21.0, code=1), ended(C, 21.0, code=1), *late]
    found = triage([*evidence, *repeated(A, "faulted", 25.5, *sm(25.8, A.pid, "Misaligned Address"))])
    named = [each.began for each in found if each.culprit is not None and each.victims]
    assert named == [pytest.approx(20.01)]


def test_a_client_that_went_over_repeated_nothing_there() -> None:
    done = [*repeated(A, "completed", 20.5), second(A, 21.0), went(A, 21.1)]
    (incident,) = triage([*LOST, *done])
    assert pids(incident.survived) == {A.pid}
    assert pids(incident.candidates) == {A.pid, B.pid, C.pid}


def _rolled(evidence: Iterable[Evidence]) -> dict[int, Incident]:
    """The incidents as they are after evidence that came one by one."""
    rolling, known = RollingTriage(), {}
    for each in sorted(evidence, key=lambda one: one.observed_at):
        rolling.add(each)
        for change in rolling.judge(each.observed_at)[0]:
            known[change.key] = change.incident
    for change in rolling.judge(22.0)[0]:
        known[change.key] = change.incident
    return known


def test_as_evidence_comes_the_lanes_incident_stays_one_and_that_of_the_repetition_is_another() -> None:
    known = _rolled([*LOST, *repeated(A, "faulted", 20.5, *AGAIN)])
    lane, alone = by_victims(list(known.values()))
    assert (lane.ground, alone.ground) == (Ground.REPEATED_ALONE, Ground.REPEATED_ALONE)
    assert lane.revision > 1
