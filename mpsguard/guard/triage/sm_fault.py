"""SM faults: the driver's log names no process, so the candidates are the clients that were there.

A server's log has the same lines for a memory fault. Xid 13, Xid 43 without Xid 31, or the exception in the sentinel's
dump exclude one. That no UVM queue has a fault does not: what a client has hidden is in none. Without such evidence the
class is `FaultClass.MMU_OR_SM`.

GPU core dumps can tell which process' code faulted: the clients' own, and the addresses at which SMs stopped. Their
worth was measured under MPS (H200, driver 580.159.04, `scripts/gpu-suite sm`): an exception in a thread of a client's
own dump was the culprit's in every fault but `trap`, and never an innocent client's; the instruction's address lay in a
range that the culprit alone had reserved. Dumps are files that clients write. So a dump is evidence about its writer
alone, an address counts only from the sentinel or from a client of the affected lane, and no process is named if there
could be two.

Being the only client is not proof: a
program outside of MPS, work that an ended client left running, or a process that holds a client's connection would
leave the same log.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from mpsguard.guard import daemon_log
from mpsguard.guard.evidence import Evidence, Lost, OwnDump, ServerSays, SmError, Trust, Xid
from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident
from mpsguard.guard.triage import repeated_alone
from mpsguard.guard.triage.fault_case import FaultCase
from mpsguard.guard.triage.lane_history import ClientStay
from mpsguard.guard.triage.orphaned_work import SERVER_LAG
from mpsguard.linux.identity import ProcessKey

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


class Attribution(msgspec.Struct, frozen=True):
    """The culprit of an SM fault, or the candidates."""

    culprits: tuple[ProcessKey, ...] = ()
    """More than one: two faults at the same time, each proven."""
    ground: Ground | None = None
    reason: str = ""
    candidates: tuple[ProcessKey, ...] = ()
    """Without a culprit: the processes that the evidence leaves; empty if it leaves all."""


def attribute_sm_fault(evidence: Iterable[Evidence], present: Iterable[ProcessKey]) -> Attribution:
    """Return what the dumps of one fault say about the clients that were on the lane."""
    seen = list(evidence)
    there = set(present)
    dumps = {
        each.process: (each.what, each.trust)
        for each in seen
        if isinstance(each.what, OwnDump) and each.process is not None and each.process in there
    }
    raised = sorted(process for process, (dump, _) in dumps.items() if dump.raised)
    verified = tuple(process for process in raised if dumps[process][1] is Trust.PROOF)
    if verified:
        return Attribution(
            verified, Ground.OWN_DUMP, "Its own GPU core dump shows the exception in a thread of its kernel."
        )
    if len(raised) > 1:
        return Attribution(candidates=tuple(raised))
    if raised:
        return Attribution(
            tuple(raised),
            Ground.OWN_DUMP_UNVERIFIED,
            "A GPU core dump under its name shows the exception; that the process wrote it itself was not seen.",
        )
    places = [each.what for each in seen if isinstance(each.what, SmError)]
    sentinels = [place for place in places if place.writer is None]
    if sentinels:
        return _by_place(sentinels, there, Ground.SENTINEL_PLACE)
    clients = [place for place in places if place.writer in there]
    if clients:
        return _by_place(clients, there, Ground.CLIENT_PLACE)
    working = [process for process, (dump, _) in dumps.items() if dump.grids]
    if len(working) == 1 and set(dumps) == there:
        return Attribution(
            (working[0],),
            Ground.LONE_KERNEL,
            "Of all clients' GPU core dumps, its own alone shows a kernel on the GPU.",
        )
    return Attribution()


def _by_place(places: Sequence[SmError], there: set[ProcessKey], ground: Ground) -> Attribution:
    """Attribute by the instructions' addresses: all of them must belong to the same client."""
    left: set[ProcessKey] = set()
    found: set[ProcessKey | None] = set()
    for place in places:
        unread = there.intersection(place.unread)
        left |= there.intersection(place.holders) | unread
        # Address space layouts are random, and a long range of another process may contain the address by chance.
        exact = there.intersection(place.exact)
        found |= exact if len(exact) == 1 and not unread else {None}
    culprit = found.pop() if len(found) == 1 else None
    if culprit is None:
        return Attribution(candidates=tuple(sorted(left)))
    return Attribution(
        (culprit,),
        ground,
        f"An SM stopped with {places[0].why} at 0x{places[0].pc:x}, which is code of no other client.",
    )


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
