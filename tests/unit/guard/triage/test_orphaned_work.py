"""A client that ends alone with work in flight: as recorded on an H200, and what would have to make one doubt it."""

import msgspec
import pytest

from mpsguard.guard.evidence import (
    ClientCame,
    Evidence,
    LaneChanged,
    LogRead,
    Lost,
    ProcessEnded,
    Source,
    Trust,
    UvmFault,
    Xid,
)
from mpsguard.guard.incident import Confidence, FaultClass, Ground
from mpsguard.guard.triage.client_history import ClientHistory
from mpsguard.guard.triage.verdict import triage
from tests.unit.guard.triage.test_verdict import (
    GPU,
    SERVER,
    A,
    B,
    C,
    came,
    ended,
    only,
    seen,
    server,
    uvm,
    xid,
)

ADDRESS = 0x7FD677754000
LINE = "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_GCC faulted @ 0x7fd6_77754000."


def left(at: float, pid: int = SERVER) -> Evidence:
    return seen(Source.KERNEL_LOG, at, Xid(31, pid, LINE), gpu=GPU, serial=f"kmsg:{at}")


def killed(at: float, signal: int = 9) -> Evidence:
    return seen(Source.PROCESSES, at, ProcessEnded(None, signal, False, None, (SERVER,)), A)


def state(word: str, at: float, *, served: bool = True, fault_asked: float | None = None) -> Evidence:
    what = LaneChanged("default", "default-0", word, "", (SERVER,) if served else (), fault_asked)
    return seen(Source.LANE, at, what, trust=Trust.PROOF)


ALONE = [came(A), left(10.0), killed(10.053)]


def test_a_process_that_ended_alone_did_it() -> None:
    incident = only(triage(ALONE))
    assert (incident.fault_class, incident.confidence) == (FaultClass.PROCESS, Confidence.LIKELY)
    assert incident.culprit is not None
    assert incident.culprit.process == A
    assert incident.work_in_flight
    assert incident.victims == ()


def test_an_end_that_is_seen_before_the_line_is_the_same() -> None:
    incident = only(triage([came(A), killed(9.9), left(10.0)]))
    assert incident.fault_class is FaultClass.PROCESS
    assert incident.culprit is not None


def test_nothing_is_said_while_the_server_may_still_speak() -> None:
    incident = only(triage(ALONE, now=10.2))
    assert incident.culprit is None
    assert incident.confidence is Confidence.UNKNOWN


@pytest.mark.parametrize(
    "more",
    [
        [came(B)],
        [server("fault_begins", 10.12), server("teardown", 10.12, A)],
        [seen(Source.UVM, 9.99, Lost(3), A)],
        [left(10.001, pid=4242)],
        [xid(13, 10.01)],
    ],
    ids=["somebody lives", "the server speaks", "the queue has lost faults", "a stranger", "an SM fault"],
)
def test_what_makes_it_doubtful(more: list[Evidence]) -> None:
    for incident in triage([*ALONE, *more]):
        assert not (incident.fault_class is FaultClass.PROCESS and incident.work_in_flight)


def test_an_unknown_pid_may_be_a_strangers() -> None:
    unknown = msgspec.structs.replace(ALONE[2], what=ProcessEnded(None, 9, False, None))
    assert only(triage([came(A), left(10.0), unknown])).confidence is Confidence.UNKNOWN


def test_one_of_several_that_ended_about_then_is_not_guessed() -> None:
    incident = only(triage([*ALONE, came(B), ended(B, 9.8, code=0)]))
    assert incident.fault_class is FaultClass.PROCESS
    assert incident.culprit is None
    assert {suspect.pid for suspect in incident.candidates} == {A.pid, B.pid}


def test_a_client_that_an_earlier_fault_had_hit_did_not_do_it() -> None:
    """It is killed because it had failed; what the kernel log says beside it is not its work."""
    earlier = [came(C), uvm(C, 8.0), server("fault_begins", 8.1), ended(C, 8.4, code=3)]
    found = triage([*ALONE, *earlier])
    assert not any(incident.culprit and incident.culprit.process == A for incident in found)


def test_work_that_comes_back_is_not_the_successors() -> None:
    again = seen(Source.UVM, 10.9, UvmFault(ADDRESS, "read", "invalid PDE", True), B)
    first, second = triage([*ALONE, came(B, 10.6), again])
    assert second.culprit == first.culprit
    assert second.culprit is not None
    assert second.culprit.process == A
    assert {suspect.pid for suspect in second.victims} == {B.pid}
    # Another page, or a client that was there before, is its own doing.
    elsewhere = seen(Source.UVM, 10.9, UvmFault(ADDRESS + 4096, "read", "invalid PDE", True), B)
    *_, own = triage([*ALONE, came(B, 10.6), elsewhere])
    assert own.culprit is not None
    assert own.culprit.process == B
    # It has only just come: what the line does not tell of may be left on the GPU, too.
    assert (own.confidence, own.ground) == (Confidence.LIKELY, Ground.UVM_QUEUE_NEWCOMER)
    later = seen(Source.UVM, 21.0, UvmFault(ADDRESS, "read", "invalid PDE", True), B)
    *_, own = triage([*ALONE, came(B, 10.6), later])
    assert (own.culprit and own.culprit.process, own.confidence) == (B, Confidence.PROVEN)


FAULT = seen(Source.UVM, 10.9, UvmFault(ADDRESS, "read", "invalid PDE", True), B)


@pytest.mark.parametrize(
    "before",
    [
        [left(10.0, pid=4242)],
        [came(A, lane="other"), left(10.0), killed(10.053)],
        [came(A), msgspec.structs.replace(left(10.0), gpu="0000:2a:00"), killed(10.053)],
    ],
    ids=["a program outside of MPS", "a client of another lane", "another GPU"],
)
def test_an_earlier_fault_at_the_page_from_elsewhere_excuses_no_client(before: list[Evidence]) -> None:
    """It makes no victim of the process that did it: the same address is easily chosen."""
    fault = msgspec.structs.replace(FAULT, gpu=GPU)
    *_, own = triage([*before, came(C, 1.0), came(B, 10.6), fault])
    assert own.culprit is not None
    assert (own.culprit.process, own.confidence) == (B, Confidence.PROVEN)
    assert B.pid not in {victim.pid for victim in own.victims}


@pytest.mark.parametrize("kernel_log", ["late", "lost"])
def test_work_of_an_ended_client_is_no_proof_against_a_newcomer_whatever_the_kernel_log_says(kernel_log: str) -> None:
    lost = [seen(Source.KERNEL_LOG, 10.5, Lost(-1))] if kernel_log == "lost" else []
    for end in (killed(10.053), ended(A, 10.053, code=0)):
        *_, incident = triage([came(A), end, *lost, came(B, 10.6), FAULT])
        assert (incident.confidence, incident.ground) == (Confidence.LIKELY, Ground.UVM_QUEUE_NEWCOMER)


def test_a_newcomer_s_fault_is_proof_where_nothing_can_be_left() -> None:
    """The lane was never empty, or its server has cleaned up since."""
    never_empty = [came(A), came(C), killed(10.053)]
    cleaned = [came(A), killed(10.053), state("FAULT", 10.2), state("ACTIVE", 10.3)]
    for before in ([], never_empty, cleaned, [came(A), killed(10.053), state("ACTIVE", 10.3, served=False)]):
        *_, incident = triage([*before, came(B, 10.6), FAULT])
        assert (incident.confidence, incident.ground) == (Confidence.PROVEN, Ground.UVM_QUEUE)


def _one_that_came_just_before_a_fault(end: float, fault_asked: float | None) -> tuple[Confidence, Ground | None]:
    """As seen on two H100s: it was hit, left with an error, with its address space kept; the next one faulted soon."""
    before = [came(C, 5.0), ended(C, 9.0, code=0), came(A, 9.3), state("FAULT", 10.0)]
    gone = with_lifeline(ended(A, end, code=3))
    after = [state("ACTIVE", 10.11, fault_asked=fault_asked), came(B, 10.6), FAULT]
    *_, incident = triage([*before, gone, *after])
    return incident.confidence, incident.ground


def test_what_ended_before_the_server_served_again_left_nothing() -> None:
    for end, asked in ((10.02, 10.0), (10.06, 10.05), (10.09, 10.05)):
        assert _one_that_came_just_before_a_fault(end, asked) == (Confidence.PROVEN, Ground.UVM_QUEUE)


@pytest.mark.parametrize(
    ("end", "asked"),
    [(10.07, 10.0), (10.06, None), (10.12, 10.1), (10.2, 10.05)],
    ids=["asked long before", "an old record", "not before it served", "after that"],
)
def test_what_may_have_had_work_there_after_the_fault_is_in_doubt(end: float, asked: float | None) -> None:
    assert _one_that_came_just_before_a_fault(end, asked) == (Confidence.LIKELY, Ground.UVM_QUEUE_NEWCOMER)


@pytest.mark.parametrize(
    "states",
    [
        [state("FAULT", 9.5), state("ACTIVE", 10.02)],
        [state("FAULT", 10.005), state("ACTIVE", 10.02)],
        [state("ACTIVE", 10.005, served=False), state("ACTIVE", 10.02)],
        [state("INITIALIZING", 10.02), state("ACTIVE", 10.04)],
    ],
    ids=["while it is cleaned up", "before the fault is seen", "while no server runs", "for which it is started"],
)
def test_work_of_a_client_that_the_next_server_may_have_served_is_not_cleaned_up(states: list[Evidence]) -> None:
    before = [came(C, 5.0), ended(C, 9.0, code=0), came(A, 10.0)]
    *_, incident = triage([*before, *states, killed(10.3), came(B, 10.6), FAULT])
    assert (incident.confidence, incident.ground) == (Confidence.LIKELY, Ground.UVM_QUEUE_NEWCOMER)


def test_what_stands_in_a_log_cleans_nothing_up_and_neither_does_a_lane_that_was_found_at_work() -> None:
    """The server's user could have written the one, and of the other's clients nothing is known."""
    written = [came(A), killed(10.053), server("fault_ends", 10.2), server("server_exited", 10.3)]
    for before in (written, [state("ACTIVE", 5.0)]):
        *_, incident = triage([*before, came(B, 10.6), FAULT])
        assert (incident.confidence, incident.ground) == (Confidence.LIKELY, Ground.UVM_QUEUE_NEWCOMER)


def test_programs_that_fault_alike_are_each_proved() -> None:
    """The server tears the first one down: nothing of it is left to come back."""
    one = [
        uvm(A, 10.0),
        left(10.1, A.pid),
        server("fault_begins", 10.1),
        server("teardown", 10.1, A),
        ended(A, 10.3, code=3),
    ]
    two = [came(B, 11.0), seen(Source.UVM, 12.0, UvmFault(ADDRESS, "read", "invalid PDE", True), B)]
    found = [incident.culprit for incident in triage([came(A), *one, *two])]
    assert [suspect and suspect.process for suspect in found] == [A, B]


def log_read(since: float, at: float = 10.9) -> Evidence:
    return seen(Source.KERNEL_LOG, at, LogRead(since))


@pytest.mark.parametrize("end", [killed(10.053), ended(A, 10.053, code=0)], ids=["killed", "exited"])
def test_a_newcomer_s_fault_is_proof_where_the_kernel_log_is_whole_and_tells_of_no_fault_since(end: Evidence) -> None:
    """As seen on two H100s: a client left an empty lane in order, and the next one faulted 0.7 s later."""
    for order in ([log_read(0.0), FAULT], [FAULT, log_read(5.0, 11.5)]):
        *_, incident = triage([came(A), end, came(B, 10.6), *order])
        assert (incident.confidence, incident.ground) == (Confidence.PROVEN, Ground.UVM_QUEUE)


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ([log_read(9.8)], "not known to be whole"),
        ([log_read(0.0, 10.8)], "not known to be whole"),
        ([log_read(0.0, 10.2), log_read(10.5, 10.9)], "not known to be whole"),
        (
            [log_read(0.0), seen(Source.KERNEL_LOG, 10.0, Xid(31, SERVER, "no address"), gpu=GPU)],
            "a memory fault since",
        ),
        ([log_read(0.0), seen(Source.KERNEL_LOG, 10.8, Xid(31, 4242, "another's"), gpu=GPU)], "a memory fault since"),
    ],
    ids=["begun too late", "not up to the fault", "a gap between", "a line without the page", "a line of another"],
)
def test_what_the_kernel_log_leaves_open_is_said(log: list[Evidence], why: str) -> None:
    fault = msgspec.structs.replace(FAULT, gpu=GPU)
    found = triage([came(A), killed(10.053), came(B, 10.6), fault, *log])
    incident = next(each for each in found if each.ground is Ground.UVM_QUEUE_NEWCOMER)
    assert incident.confidence is Confidence.LIKELY
    assert f"process {A.pid} had left the lane empty" in incident.reason
    assert why in incident.reason


def test_a_line_of_another_gpu_or_of_before_its_coming_is_not_of_its_work() -> None:
    fault = msgspec.structs.replace(FAULT, gpu=GPU)
    others = [
        seen(Source.KERNEL_LOG, 10.2, Xid(31, 1, ""), gpu="0000:2a:00"),
        seen(Source.KERNEL_LOG, 3.0, Xid(31, 1, ""), gpu=GPU),
    ]
    found = triage([came(A, 9.0), killed(10.053), came(B, 10.6), fault, *others, log_read(0.0)])
    assert (Confidence.PROVEN, Ground.UVM_QUEUE) in [(each.confidence, each.ground) for each in found]


def test_right_after_an_end_the_line_may_be_still_to_come() -> None:
    *_, incident = triage([came(A), killed(10.8), came(B, 10.81), FAULT, log_read(0.0)])
    assert incident.ground is Ground.UVM_QUEUE_NEWCOMER


def of_user(uid: int, evidence: Evidence) -> Evidence:
    assert isinstance(evidence.what, ClientCame)
    return msgspec.structs.replace(evidence, what=msgspec.structs.replace(evidence.what, uid=uid))


def with_lifeline(evidence: Evidence) -> Evidence:
    assert isinstance(evidence.what, ProcessEnded)
    return msgspec.structs.replace(evidence, what=msgspec.structs.replace(evidence.what, kept=True))


@pytest.mark.parametrize(
    ("before", "end", "after", "why"),
    [
        (came(A), with_lifeline(killed(10.053)), came(B, 10.6), "its address space was kept"),
        (of_user(65534, came(A)), killed(10.053), of_user(1000, came(B, 10.6)), "another user"),
        (of_user(65534, came(A)), ended(A, 10.053, code=0), of_user(1000, came(B, 10.6)), "another user"),
    ],
    ids=["a lifeline", "another user's", "another user's that exited"],
)
def test_a_kernel_log_without_a_fault_does_not_speak_for_work_that_may_have_its_address_space(
    before: Evidence, end: Evidence, after: Evidence, why: str
) -> None:
    """What never faulted has no line, and may fault first in the queue of a newcomer that has its place on the GPU."""
    *_, incident = triage([before, end, after, log_read(0.0), FAULT])
    assert (incident.confidence, incident.ground) == (Confidence.LIKELY, Ground.UVM_QUEUE_NEWCOMER)
    assert why in incident.reason


@pytest.mark.parametrize(
    ("end", "user"), [(with_lifeline(killed(10.053)), 65534), (killed(10.053), 1000)], ids=["a lifeline", "another's"]
)
def test_nor_does_it_once_that_client_is_forgotten(end: Evidence, user: int) -> None:
    history = ClientHistory([of_user(65534, came(A)), end, of_user(user, came(B, 10.6)), log_read(0.0)])
    history.forget(A)
    stay = history.stay(B)
    assert stay is not None
    assert "a client had left the lane empty" in history.work_left(stay, FAULT, 20.0)
