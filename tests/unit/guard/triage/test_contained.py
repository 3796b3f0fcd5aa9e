"""Verdicts on faults that the kernel module contained, alone and beside others."""

import signal
from itertools import permutations

import msgspec
import pytest

from mpsguard.guard.evidence import ClientCame, Evidence, FaultContained, ProcessEnded, Source, Trust, UvmFault, Xid
from mpsguard.guard.incident import Confidence, FaultClass, Ground
from mpsguard.guard.triage.verdict import triage
from mpsguard.linux.identity import ProcessKey

A, B, C = (ProcessKey(pid, pid * 10) for pid in (101, 102, 103))


def came(process: ProcessKey) -> Evidence:
    what = ClientCame("default", "default-0")
    return Evidence(Source.PROCESSES, 1.0, what, process=process, trust=Trust.PROOF)


def contained(process: ProcessKey, at: float) -> Evidence:
    what = FaultContained(0x7FFF12345000, "write", "invalid pte", "sm")
    return Evidence(Source.KMOD, at, what, process=process, trust=Trust.PROOF, serial=f"kmod:{at}")


def fatal(process: ProcessKey, at: float) -> Evidence:
    what = UvmFault(0x7FFF12345000, "write", "invalid PTE", fatal=True)
    return Evidence(Source.UVM, at, what, process=process, trust=Trust.PROOF, serial=f"uvm:{at}")


CLIENTS = [came(A), came(B), came(C)]


def test_only_the_culprit_is_in_it() -> None:
    for order in permutations([fatal(A, 10.0), contained(A, 10.002)]):
        (incident,) = triage([*CLIENTS, *order])
        assert incident.fault_class is FaultClass.MMU
        assert incident.confidence is Confidence.PROVEN
        assert incident.culprit is not None
        assert incident.culprit.process == A
        assert incident.victims == ()
        assert "contained" in incident.reason


def test_one_not_known_as_a_client_is_likely_until_its_own_queue_tells_of_it_too() -> None:
    report = msgspec.structs.replace(contained(A, 10.002), trust=Trust.HINT)
    (alone,) = triage([*CLIENTS, report])
    assert (alone.confidence, alone.ground) == (Confidence.LIKELY, Ground.CONTAINED_PID)
    (both,) = triage([*CLIENTS, report, fatal(A, 10.0)])
    assert (both.confidence, both.ground) == (Confidence.PROVEN, Ground.CONTAINED)


def test_two_culprits_are_two_incidents() -> None:
    found = triage([*CLIENTS, contained(A, 10.0), contained(B, 10.001)])
    assert [incident.culprit.process for incident in found if incident.culprit] == [A, B]


@pytest.mark.parametrize(("at", "number"), [(10.5, signal.SIGKILL), (10.001, signal.SIGBUS), (9.999, signal.SIGBUS)])
def test_the_culprit_s_end_by_guard_or_module_is_no_second_incident(at: float, number: int) -> None:
    killed = Evidence(
        Source.PROCESSES,
        at,
        ProcessEnded(None, number, oom_killed=False, work_in_flight=None),
        process=A,
        trust=Trust.PROOF,
    )
    (incident,) = triage([*CLIENTS, contained(A, 10.0), killed])
    assert "contained" in incident.reason


@pytest.mark.parametrize("number", [31, 13])
def test_an_xid_says_that_it_was_not_kept_after_all(number: int) -> None:
    xid = Evidence(Source.KERNEL_LOG, 10.13, Xid(number, None, "..."), gpu="0000:18:00", serial="kmsg:1")
    (incident,) = triage([*CLIENTS, fatal(A, 10.0), contained(A, 10.002), xid])
    assert incident.culprit is not None
    assert incident.culprit.process == A
    assert {victim.process for victim in incident.victims} == {B, C}


def test_a_fault_beside_it_that_was_not_contained() -> None:
    found = triage([*CLIENTS, contained(A, 10.0), fatal(B, 10.001)])
    reasons = {incident.culprit.process: incident.reason for incident in found if incident.culprit}
    assert "contained" in reasons[A]
    assert "UVM event queue" in reasons[B]
