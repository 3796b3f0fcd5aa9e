"""SM faults: the driver's log names no process, so the candidates are the clients that were there.

GPU core dumps can tell which process' code faulted (`attribute_sm_fault`). Being the only client is not proof: a
program outside of MPS, work that an ended client left running, or a process that holds a client's connection would
leave the same log.
"""

from typing import Final

from mpsguard import daemon_log
from mpsguard.evidence import Lost, ServerSays, Xid
from mpsguard.incident import Confidence, FaultClass, Ground, Incident
from mpsguard.triage.client_history import ClientStay
from mpsguard.triage.fault_case import FaultCase
from mpsguard.triage.orphaned_work import SERVER_LAG
from mpsguard.triage.sm_attribution import attribute_sm_fault

XIDS: Final = frozenset({13})
_SERVER_XID: Final = 43
_SERVER_SIGNS: Final = (daemon_log.BEGINS, daemon_log.STICKY, daemon_log.TEARDOWN)


def rule(case: FaultCase) -> list[Incident]:
    """Return the incidents of an SM fault that the kernel log or a server reports."""
    if not XIDS & set(case.xids) and not case.server_lines(*_SERVER_SIGNS):
        return []
    found = by_code(case, FaultClass.SM)
    if found:
        return found
    only = _only_client(case)
    if only is not None:
        return [
            case.named(
                FaultClass.SM,
                Ground.ONLY_CLIENT,
                "It was the only client, and no other has been on the server since that started.",
                case.history.suspect(only.process),
            )
        ]
    present = case.present()
    left = [stay for stay in case.left_before() if stay not in present] if len(present) < 2 else []
    why = "the stock driver does not say which client's kernel raised an SM exception"
    return [case.unknown(FaultClass.SM, why, left)]


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
