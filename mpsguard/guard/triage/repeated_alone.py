"""Work that clients repeat alone, outside of MPS: what its faults say of it, and of the lane's fault before.

Under MPS the kernel's lines of SM faults name the server or no process; outside, the process. So a line with the pid of
a client that says that it repeats its work alone is about that work: no lane has faulted, and no other client is hit.

That the repetition was completed is the client's word: it clears nothing and accuses nothing. Nor does the fault of one
client's repetition clear another client.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from mpsguard.guard.evidence import SM_XIDS, Evidence, Xid
from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident
from mpsguard.guard.triage.client_history import when
from mpsguard.guard.triage.evidence_group import BEFORE, EvidenceGroup, names_owner
from mpsguard.guard.triage.fault_case import FaultCase
from mpsguard.guard.triage.lane_history import ClientStay
from mpsguard.guard.triage.orphaned_work import SERVER_LAG
from mpsguard.guard.triage.repetitions import COMPLETED, FAULTED, Repetition
from mpsguard.linux.identity import ProcessKey

_KINDS: Final = frozenset({13, 31, 43})
"""Xids that tell one kind of fault from another."""
_STOPPED: Final = 43
"""The Xid of a channel that is stopped by a fault of the SMs; under MPS with the server's pid."""
_LINE_LAG: Final = 0.5
"""Seconds after the word that a repetition faulted within which the kernel's line has come (0.15 s seen)."""
_EXCEPTION: Final = re.compile(r"SM Warp Exception on \([^)]*\): (.+)$")

_AGAIN: Final = "Its work faulted again when repeated alone"
_BY_ITS_WORD: Final = ", by its own word."


def rule(case: FaultCase) -> list[Incident]:
    """Return the incident of a fault outside of MPS, in work that a client repeats alone: it has no victims."""
    process = case.group.author
    repetition = case.history.repetitions.of(process)
    if process is None or repetition is None:
        return []
    fault_class = FaultClass.SM if _names(case.group, process) else FaultClass.MMU
    if repetition.outcome != FAULTED or (fault_class is FaultClass.MMU and case.now < case.group.began + SERVER_LAG):
        stay = case.history.stay(process)
        return [
            case.incident(
                fault_class,
                Confidence.UNKNOWN,
                f"Process {process.pid} repeats its work alone, and something of it faulted outside of MPS.",
                candidates=() if stay is None else (stay,),
                victims=(),
                more=repetition.said,
            )
        ]
    proven = fault_class is FaultClass.SM and case.has_repeated(process)
    ground = Ground.REPEATED_ALONE if proven else Ground.REPEATED_ALONE_WORD
    reason = f"{_AGAIN}, outside of MPS" + (": the kernel's line names the process itself." if proven else _BY_ITS_WORD)
    return [case.named(fault_class, ground, reason, case.history.suspect(process), victims=(), more=repetition.said)]


def culprits(case: FaultCase, fault_class: FaultClass) -> list[Incident]:
    """Return the incidents with a culprit of a lane's SM fault that repeated it alone; [] without one."""
    incidents = []
    for stay, repetition in _repeated(case):
        ground = _ground(case, stay.process, repetition)
        if ground is not None:
            reason = _AGAIN + ("." if ground is Ground.REPEATED_ALONE else _BY_ITS_WORD)
            suspect = case.history.suspect(stay.process)
            again = case.repeated.get(stay.process)
            more = (*repetition.said, *(again.anchors if again is not None else ()))
            incidents.append(case.named(fault_class, ground, reason, suspect, more=more))
    return incidents


def _ground(case: FaultCase, process: ProcessKey, repetition: Repetition) -> Ground | None:
    # Of a fault of which the lane is not known, it may not have been hit.
    if repetition.outcome != FAULTED or case.lane is None:
        return None
    again = case.repeated.get(process)
    if again is not None and _names(again, process) and not _is_beside_another(case, process, again):
        return Ground.REPEATED_ALONE if _is_same(case, again) and _is_whole(case, again) else None
    return Ground.REPEATED_ALONE_WORD if case.now >= repetition.over + _LINE_LAG else None


def told(case: FaultCase, incident: Incident) -> Incident:
    """Return an incident without a culprit with what its candidates say of their repetitions."""
    repeated = _repeated(case)
    more = dict.fromkeys((*incident.evidence, *(each for _, found in repeated for each in found.said)))
    evidence = tuple(sorted(more, key=when))
    return msgspec.structs.replace(incident, reason=incident.reason + _reason(case, repeated), evidence=evidence)


def _reason(case: FaultCase, repeated: list[tuple[ClientStay, Repetition]]) -> str:
    completed = sum(each.outcome == COMPLETED for _, each in repeated)
    others = [
        stay.process.pid
        for stay, each in repeated
        if each.outcome == FAULTED and stay.process in case.repeated and not _is_same(case, case.repeated[stay.process])
    ]
    said = f" {completed} of them say that they repeated their work alone without a fault." if completed else ""
    if others:
        said += f" The work of process {', '.join(map(str, others))} faulted when repeated alone, in another way."
    return said


def _repeated(case: FaultCase) -> list[tuple[ClientStay, Repetition]]:
    """Return the clients that lost their work by this fault, and no earlier one, and repeated it."""
    found = []
    for stay in case.present():
        repetition = case.history.repetitions.of(stay.process)
        if repetition is not None and repetition.began > case.group.began and not case.had_lost(stay.process):
            found.append((stay, repetition))
    return found


def _names(group: EvidenceGroup, process: ProcessKey) -> bool:
    """Return whether the kernel names a process in a line in which it names no client under MPS."""
    lines = (each.what for each in group.anchors if isinstance(each.what, Xid))
    return any(line.number in SM_XIDS and line.pid == process.pid and names_owner(line) for line in lines)


def _is_beside_another(case: FaultCase, process: ProcessKey, again: EvidenceGroup) -> bool:
    """Return whether the kernel named another process that repeated its work alone, at about the same time.

    Which of them the lines without an owner are about is not known then.
    """
    return any(
        other != process
        and abs(group.began - again.began) <= BEFORE
        and (group.gpu is None or again.gpu is None or group.gpu == again.gpu)
        for other, group in case.repeated.items()
    )


def _is_same(case: FaultCase, again: EvidenceGroup) -> bool:
    """Return whether the lane's fault and one outside of MPS are of the same kind, as far as the kernel's lines tell.

    Of the lane's, one says that a channel was stopped, and names no process but its server. Without that the lane may
    have had no fault at all: clients can forge lines of the server's log, and a process that is no client can fault at
    the same time.
    """
    group = case.group
    if group.gpu is not None and again.gpu is not None and group.gpu != again.gpu:
        return False
    lines = [e for e in group.evidence if isinstance(e.what, Xid) and not _is_of_another(case, e.what)]
    stopped = any(isinstance(e.what, Xid) and e.what.number == _STOPPED for e in lines)
    return stopped and _kind(lines) == _kind(again.anchors)


def _is_of_another(case: FaultCase, line: Xid) -> bool:
    return line.pid is not None and case.lane not in case.history.lanes_of_server(line.pid)


def _is_whole(case: FaultCase, again: EvidenceGroup) -> bool:
    """Return whether no line of either fault can be missing: with one more, they might be of different kinds."""
    return case.history.kernel_log_was_read(case.group.began - BEFORE, max(when(each) for each in again.anchors))


def _kind(evidence: Iterable[Evidence]) -> tuple[frozenset[int], frozenset[str]]:
    """Return the Xids and exceptions of a fault.

    After an exception, Xid 43 says that a channel is stopped: under MPS. Outside, a last line of Xid 13 names the
    process instead (a misaligned address, H100, 580.159.04). A trap has Xid 43 alone, in both.
    """
    lines = [each.what for each in evidence if isinstance(each.what, Xid)]
    exceptions = (found[1] for line in lines if line.number == 13 and (found := _EXCEPTION.search(line.text)))
    numbers = frozenset(line.number for line in lines) & _KINDS
    return numbers - {43} if 13 in numbers else numbers, frozenset(exceptions)
