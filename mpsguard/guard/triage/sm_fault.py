"""SM faults: the driver's log names no process, so the candidates are the clients that were there.

A server's log has the same lines for a memory fault. Xid 13, Xid 43 without Xid 31, or the exception in the sentinel's
dump exclude one. That no UVM queue has a fault does not: what a client has hidden is in none. Without such evidence the
class is `FaultClass.MMU_OR_SM`.

GPU core dumps can tell which process' code faulted (`attribute_sm_fault`). Being the only client is not proof: a
program outside of MPS, work that an ended client left running, or a process that holds a client's connection would
leave the same log.
"""

from typing import Final

from mpsguard.guard import daemon_log
from mpsguard.guard.evidence import Lost, ServerSays, SmError, Xid
from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident
from mpsguard.guard.triage import repeated_alone
from mpsguard.guard.triage.client_stay import ClientStay
from mpsguard.guard.triage.fault_case import FaultCase
from mpsguard.guard.triage.orphaned_work import SERVER_LAG
from mpsguard.guard.triage.sm_attribution import attribute_sm_fault

XIDS: Final = frozenset({13})
_SERVER_XID: Final = 43
_EXCEPTIONS: Final = frozenset(
    {
        "user stack overflow",
        "hardware stack overflow",
        "illegal instruction",
        "address out of range",
        "misaligned address",
        "invalid address space",
        "misaligned address in a lane",
        "assertion",
    }
)
"""The exceptions in `SmError.why` that no memory fault raises."""
_SERVER_SIGNS: Final = (daemon_log.BEGINS, daemon_log.STICKY, daemon_log.TEARDOWN)


def rule(case: FaultCase) -> list[Incident]:
    """Return the incidents of an SM fault that the kernel log or a server reports, or of what may be one."""
    if not XIDS & set(case.xids) and not case.server_lines(*_SERVER_SIGNS):
        return []
    fault_class = _class_of(case)
    by_dumps, repeated = by_code(case, fault_class), repeated_alone.culprits(case, fault_class)
    named = [incident for incident in (*by_dumps, *repeated) if incident.culprit is not None]
    found = _proven(named) or named[:1]
    if found:
        return found
    if by_dumps:
        return [repeated_alone.told(case, incident) for incident in by_dumps]
    only = _only_client(case)
    if only is not None:
        return [
            case.named(
                fault_class,
                Ground.ONLY_CLIENT,
                "It was the only client, and no other has been on the server since that started.",
                case.history.suspect(only.process),
            )
        ]
    present = case.present()
    left = [stay for stay in case.left_before() if stay not in present] if len(present) < 2 else []
    why = "the stock driver does not say which client's kernel raised an SM exception"
    if fault_class is FaultClass.MMU_OR_SM:
        why = (
            "a server had a fault, and neither the kernel log nor a UVM event queue tells whether it was a memory "
            "fault or one inside a kernel"
        )
    return [repeated_alone.told(case, case.unknown(fault_class, why, left))]


def _proven(named: list[Incident]) -> list[Incident]:
    """Return those with a proven culprit, of each culprit one: several are several faults at the same time."""
    proven = [incident for incident in named if incident.confidence is Confidence.PROVEN]
    return list({incident.culprit: incident for incident in reversed(proven)}.values())[::-1]


def _class_of(case: FaultCase) -> FaultClass:
    """Return SM if the evidence excludes a memory fault; the rules for memory faults come before this one."""
    if XIDS & set(case.xids):
        return FaultClass.SM
    # The driver writes Xid 31 before Xid 43, so that its line is there unless lines are lost.
    if _SERVER_XID in case.xids and not any(isinstance(e.what, Lost) for e in case.group.evidence):
        return FaultClass.SM
    # A client's dump is a file that it can write at will; the sentinel is the guard's own.
    sentinels = [e.what for e in case.group.evidence if isinstance(e.what, SmError) and e.what.writer is None]
    return FaultClass.SM if any(place.why in _EXCEPTIONS for place in sentinels) else FaultClass.MMU_OR_SM


def by_code(case: FaultCase, fault_class: FaultClass) -> list[Incident]:
    """Return the incidents that the lane's GPU core dumps allow; [] if they do not narrow the candidates down."""
    present = case.present()
    found = attribute_sm_fault(case.group.evidence, [stay.process for stay in present])
    if found.ground is not None:
        return [
            case.named(fault_class, found.ground, found.reason, case.history.suspect(process))
            for process in found.culprits
        ]
    left = [stay for stay in present if stay.process in found.candidates]
    if left and len(left) < len(present):
        return [
            case.incident(
                fault_class,
                Confidence.UNKNOWN,
                f"The culprit is one of {len(left)} of {len(present)} clients: the others have nothing at the "
                "instruction that the SM stopped at.",
                candidates=left,
            )
        ]
    return []


def _only_client(case: FaultCase) -> ClientStay | None:
    """Return the only client that can be the culprit, as far as the guard knows."""
    present = case.present()
    if len(present) != 1 or case.now < case.group.began + SERVER_LAG or case.group.other_gpus:
        return None
    (stay,) = present
    signs = [e.what for e in case.server_lines(*_SERVER_SIGNS) if isinstance(e.what, ServerSays)]
    if not any(sign.lane == stay.lane for sign in signs):
        return None
    # The driver's line names the server: another pid belongs to a program outside of this lane.
    blamed = {e.what.pid for e in case.group.evidence if isinstance(e.what, Xid) and e.what.number == _SERVER_XID}
    if blamed - {None} - case.history.servers(stay.lane):
        return None
    if any(isinstance(e.what, Lost) for e in case.group.evidence):
        return None
    return stay if case.history.none_ended_since_the_server_started(stay.lane, case.group.began) else None
