"""The class of a fault that a server reports: SM only where something excludes a memory fault."""

import pytest

from mpsguard.guard.evidence import Evidence, Lost, OwnDump, SmError, Source, Trust
from mpsguard.guard.incident import FaultClass
from mpsguard.guard.report import messages
from mpsguard.guard.sensors.gpu_core import exception_name
from mpsguard.guard.triage.verdict import triage
from mpsguard.linux.identity import ProcessKey
from tests.unit.guard.triage.test_verdict import CLIENTS, SERVER, A, B, C, only, pids, seen, server, uvm, xid

REPORTED = [server("fault_begins", 20.015), *(server("teardown", 20.016, each) for each in (A, B, C))]
LOST = seen(Source.KERNEL_LOG, 20.02, Lost(1))


def dump(exception: int, writer: ProcessKey | None = None) -> Evidence:
    return seen(Source.GPU_CORE, 20.06, SmError(exception_name(exception), 0x7F00, (A,), (A,), (), writer))


def test_the_server_s_word_alone_does_not_tell_a_memory_fault_from_one_inside_a_kernel() -> None:
    incident = only(triage([*CLIENTS, *REPORTED]))
    assert (incident.fault_class, incident.culprit) == (FaultClass.MMU_OR_SM, None)
    assert pids(incident.candidates) == {A.pid, B.pid, C.pid}
    assert "SM exception" not in incident.reason
    assert "not known which" in messages.verdict(incident, {})


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ([xid(13, 20.01)], FaultClass.SM),
        ([xid(13, 20.01), LOST], FaultClass.SM),
        ([xid(43, 20.02, SERVER)], FaultClass.SM),
        ([xid(31, 20.14, A.pid), xid(43, 20.15, SERVER)], FaultClass.MMU),
        ([uvm(A, 20.01)], FaultClass.MMU),
        ([dump(6)], FaultClass.SM),
        # The line of Xid 31 may be among the lost ones.
        ([xid(43, 20.02, SERVER), LOST], FaultClass.MMU_OR_SM),
        # A memory fault stops SMs, too, and so does a jump to a wild address.
        ([dump(14)], FaultClass.MMU_OR_SM),
        ([dump(8)], FaultClass.MMU_OR_SM),
        # A client may write anything into its dump.
        ([dump(6, B)], FaultClass.MMU_OR_SM),
    ],
)
def test_what_excludes_a_memory_fault(evidence: list[Evidence], expected: FaultClass) -> None:
    assert only(triage([*CLIENTS, *REPORTED, *evidence])).fault_class is expected


def test_a_dump_of_its_own_proves_the_culprit_and_not_the_kind_of_fault() -> None:
    own = seen(Source.GPU_CORE, 20.06, OwnDump(True, 1), B, trust=Trust.PROOF)
    incident = only(triage([*CLIENTS, *REPORTED, own]))
    assert incident.culprit is not None
    assert (incident.fault_class, incident.culprit.process) == (FaultClass.MMU_OR_SM, B)
