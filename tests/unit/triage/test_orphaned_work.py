"""A client that ends alone with work in flight: as recorded on an H200, and what would have to make one doubt it."""

import msgspec
import pytest

from mpsguard.evidence import Evidence, LaneChanged, Lost, ProcessEnded, Source, Trust, UvmFault, Xid
from mpsguard.incident import Confidence, FaultClass, Ground
from mpsguard.triage.verdict import triage
from tests.unit.triage.test_verdict import (
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


def state(word: str, at: float, *, served: bool = True) -> Evidence:
    servers = (SERVER,) if served else ()
    return seen(Source.LANE, at, LaneChanged("default", "default-0", word, "", servers), trust=Trust.PROOF)


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
