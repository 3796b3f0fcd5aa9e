"""Triage: evidence in, incidents out. A pure function, so that a recorded incident can be judged again.

The rules follow what was measured under MPS on the stock driver (H200, 580.159.04):

* A fatal fault in a client's own UVM event queue was caused by that client: proof, 2 ms after the access; unless the
  client has only just arrived on a lane that others had left, and the kernel log does not rule out that it was work of
  theirs (`ClientHistory.work_left`).
* The pid in an Xid 31 line is mostly an innocent client's, the one in an Xid 43 line the server's, and the client that
  the server's log says "encountered a fatal GPU error" is mostly innocent too: none of them is used to name a culprit.
* With the patched nvidia-uvm a fault is contained, and the module reports it: the queue has it as well, and there is no
  Xid.
* A client that ends with work in flight causes an Xid 31 for all others, with no fatal event in any living client's
  queue; the server tears down all clients but that one, and its process is seen to end some 0.08 s later.
* Without another client the server logs nothing, and the work may fault again in a later client's queue: see
  `mpsguard.guard.triage.orphaned_work`.
* For an SM fault the driver's log names no process: see `mpsguard.guard.triage.sm_fault`.

Not knowing is a verdict: `Confidence.UNKNOWN`, the candidates, and the reason. Elimination proves nothing: a process
without any evidence may run on a GPU. The worth of each kind of evidence is in `mpsguard.guard.triage.grounds`.
"""

import signal
from collections.abc import Callable, Iterable
from math import inf
from typing import Final

import msgspec

from mpsguard.guard import daemon_log
from mpsguard.guard.evidence import Evidence, LaneChanged, ProcessEnded, Trust, Xid
from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident, Suspect
from mpsguard.guard.model import TOLD_TO_QUIT
from mpsguard.guard.triage import orphaned_work, repeated_alone, sm_fault, zone_hits
from mpsguard.guard.triage.client_history import ClientHistory, when
from mpsguard.guard.triage.evidence_group import BEFORE, TELLING, EvidenceGroup, Parts, evidence_groups, in_order
from mpsguard.guard.triage.fault_case import FaultCase
from mpsguard.guard.triage.judgements import Judgement, KeptJudgements
from mpsguard.guard.triage.orphaned_work import Unnoticed
from mpsguard.guard.triage.past import Past

_MMU_XIDS: Final = frozenset({31})
_KERNEL_LOG_LAG: Final = 0.25
"""Seconds by which the kernel log's line may come after the server's first line (35 ms seen)."""

_ECHO_XIDS: Final = frozenset({43, 45})


def triage(evidence: Iterable[Evidence], now: float = inf) -> tuple[Incident, ...]:
    """Return the incidents in ``evidence``, oldest first; the order of ``evidence`` does not matter.

    Args:
        evidence: the observations.
        now: time of the judgement, on the evidence's clock: evidence that may still arrive is taken into account. The
            default is for a complete record.
    """
    ordered = in_order(evidence)
    judged = judge(Parts.of(ordered), ClientHistory(ordered), Past(), now)
    found = [incident for judgement in judged for incident in judgement.incidents]
    return tuple(sorted(found, key=lambda incident: (incident.began, incident.fault_class.value)))


def judge(
    parts: Parts, history: ClientHistory, past: Past, now: float, settled: KeptJudgements | None = None
) -> list[Judgement]:
    """Return the judgements on evidence, in the order in which the faults began.

    Args:
        parts: the evidence.
        history: the clients and lanes.
        past: the earlier faults.
        now: time of the judgement, on the evidence's clock.
        settled: the judgements of the last time, which are made again only where they may be others.
    """
    grown = Past(past)
    groups = evidence_groups(parts, history)
    repeated = {group.author: group for group in reversed(groups) if group.author is not None}
    steps: list[tuple[float, EvidenceGroup | Evidence]] = [(group.began, group) for group in groups]
    steps += [(when(zone), zone) for zone in parts.zones]
    steps.sort(key=lambda step: step[0])
    judged, of_groups = [], []
    # What a client says of a repetition tells of earlier faults, too.
    same = settled is not None and not history.repetitions.any()
    for _, step in steps:
        known = settled.of(step) if settled is not None and same and isinstance(step, EvidenceGroup) else None
        if known is not None:
            judgement = known
        elif isinstance(step, Evidence):
            judgement = _judgement((step,), [(zone_hits.incident(step, history), None)], grown)
        else:
            judgement = _judgement(step.anchors, _judge(FaultCase(step, history, now, grown, repeated)), grown)
            # What follows from an earlier fault may be another then.
            same = same and settled is not None and not settled.differs(step, judgement)
        for incident, unnoticed in judgement.remembered:
            grown.add(incident, unnoticed)
        judged.append(judgement)
        if isinstance(step, EvidenceGroup):
            of_groups.append((step, judgement))
    if settled is not None:
        settled.replace(of_groups, now)
    return judged


def _judgement(
    evidence: tuple[Evidence, ...], found: list[tuple[Incident, Unnoticed | None]], before: Past
) -> Judgement:
    published = tuple(incident for incident, _ in found if not before.explains(incident))
    return Judgement(evidence, published, tuple(found))


def _judge(case: FaultCase) -> list[tuple[Incident, Unnoticed | None]]:
    ends = case.ends()
    if len(case.group.anchors) == 1 and isinstance(case.group.anchors[0].what, ProcessEnded):
        # No sign of a fault: such ends are judged one by one, in linear time.
        return [(_crash(case, end, False), None) for end in ends]
    # The first rule that applies decides what happened; a proven culprit beats every hint.
    for rule in _RULES:
        incidents = rule(case)
        if incidents:
            return [
                (incident, _unnoticed(case, incident) if rule is _no_client_left else None) for incident in incidents
            ]
    return []


def _unnoticed(case: FaultCase, incident: Incident) -> Unnoticed:
    parties = [case.history.stay(s.process) for s in (incident.culprit, *incident.candidates) if s is not None]
    lanes = frozenset(stay.lane for stay in parties if stay is not None)
    return Unnoticed(incident, orphaned_work.unnoticed_pages(case.group), lanes, case.group.gpu)


def _device(case: FaultCase) -> list[Incident]:
    """A fault of the GPU itself: every client on it is a victim, and there is no culprit."""
    signs = case.device_signs
    if not signs:
        return []
    if all(sign.waits for sign in signs) and case.now < case.group.began + BEFORE:
        why = "Memory of the GPU lost data; the driver has not said yet whether the damage was contained."
        return [case.incident(FaultClass.ENGINE, Confidence.UNKNOWN, why, victims=())]
    if any(sign.proven for sign in signs):
        return [
            case.incident(
                FaultClass.DEVICE,
                Confidence.PROVEN,
                "The device itself reports the fault: no process is to blame.",
                victims=case.on_any_lane(),
            )
        ]
    why = "The driver's message is one of a fault of the device, but its words do not prove it."
    return [case.incident(FaultClass.DEVICE, Confidence.LIKELY, why, victims=case.on_any_lane())]


def _contained_memory_fault(case: FaultCase) -> list[Incident]:
    """Faults that the kernel module contained, and beside them those that it could not contain."""
    contained = case.contained()
    if not contained:
        return []
    fatal = case.fatal_faults()
    incidents = [
        case.named(
            FaultClass.MMU,
            # A process that was not known as a client is proven to be one by a fault in its own queue.
            Ground.CONTAINED if evidence.trust is Trust.PROOF or process in fatal else Ground.CONTAINED_PID,
            "The kernel module contained the fault and named the process; nobody else was hurt.",
            case.history.suspect(process),
            victims=(),
            began=when(evidence),
        )
        for process, evidence in contained.items()
    ]
    return incidents + [
        incident
        for incident in _proven_memory_fault(case)
        if incident.culprit is not None and incident.culprit.process not in contained
    ]


def _came_back(case: FaultCase) -> list[Incident]:
    """Work that an ended client left on the GPU faults in the queue of a later client, which is a victim."""
    for process, evidence in case.fatal_faults().items():
        before = orphaned_work.came_back(evidence, case.history.stay(process, when(evidence)), case.unnoticed)
        if before is not None:
            incident = case.incident(
                before.fault_class,
                before.confidence,
                f"The same address faulted before process {process.pid} came, and no server took notice: the work of a "
                "client that had ended was still on the GPU.",
                culprit=before.culprit,
                victims=case.present(when(evidence)),
                began=when(evidence),
                work_in_flight=before.work_in_flight,
            )
            ground = None if before.culprit is None else Ground.CAME_BACK
            return [msgspec.structs.replace(incident, candidates=before.candidates, ground=ground)]
    return []


def _proven_memory_fault(case: FaultCase) -> list[Incident]:
    incidents = []
    for process, evidence in case.fatal_faults().items():
        stay = case.history.stay(process, when(evidence))
        ground, reason = (
            Ground.UVM_QUEUE,
            "The fatal fault was in this process' own UVM event queue, and in no other's.",
        )
        if (
            stay is not None
            and when(evidence) - stay.arrived <= orphaned_work.NEWCOMER
            and (doubt := case.history.work_left(stay, evidence, case.now))
        ):
            ground = Ground.UVM_QUEUE_NEWCOMER
            reason = (
                "The fatal fault was in this process' own UVM event queue. It is no proof (uvm_queue): the process had "
                f"only just come, {doubt}; work left there could show in its queue, too."
            )
        incidents.append(
            case.named(FaultClass.MMU, ground, reason, case.history.suspect(process), began=when(evidence))
        )
    return incidents


def _lane(case: FaultCase) -> list[Incident]:
    """A control daemon or a server ended, and its clients with it; there is no culprit."""
    downs = [e for e in case.group.anchors if isinstance(e.what, LaneChanged)]
    exits = [each for each in case.server_lines(daemon_log.EXITED) if not case.was_told_to_end(each)]
    if not downs and not exits:
        return []
    if case.first_gpu_sign() is not None and case.server_lines(daemon_log.BEGINS, daemon_log.CULPRIT):
        # The server ended because of a fault: the rules for that fault apply.
        return []
    told_to_quit = all(isinstance(e.what, LaneChanged) and e.what.reason == TOLD_TO_QUIT for e in downs)
    # The log line on a server's end may come after the ends of its clients, which fail with it.
    failed = any(isinstance(e.what, ProcessEnded) and e.what.exit_code != 0 for e in case.ends())
    if told_to_quit and not case.present() and (downs or not failed):
        # An orderly end, or that of a server without clients.
        return []
    what = "control daemon" if downs else "server"
    return [case.incident(FaultClass.LANE, Confidence.PROVEN, f"The lane's {what} ended; its clients end with it.")]


def _process(case: FaultCase) -> list[Incident]:
    """A client ended, and the fault followed from its work.

    The culprit is the client that the server does not tear down: the server tears down all its clients, and a client
    with an ending process has left it already.
    """
    ends = case.ends()
    sign = case.first_gpu_sign()
    if sign is None:
        return []
    if set(case.xids) & sm_fault.XIDS or (43 in case.xids and not set(case.xids) & _MMU_XIDS):
        return []
    if not case.xids and case.now < sign + _KERNEL_LOG_LAG:
        # The kernel log will soon tell whether it was an SM fault: no culprit is named before.
        return []
    kept = case.torn_down()
    gone = [end for end in ends if not case.was_hit(end.process) and end.process not in kept]
    if not set(case.xids) & _MMU_XIDS:
        # Without evidence of a memory fault, a client that may have ended of its own CUDA error is no suspect.
        gone = [end for end in gone if not _may_be_of_an_error(end)]
    if not kept or not gone:
        return []
    if len(gone) == 1:
        return [_crash(case, gone[0], True)]
    stays = [stay for end in gone if (stay := case.history.stay(end.process)) is not None]
    return [
        case.incident(
            FaultClass.PROCESS,
            Confidence.UNKNOWN,
            f"{len(gone)} clients had left the server when it faulted; the work of any of them may have caused it.",
            candidates=stays,
            victims=[stay for stay in case.present(sign) if stay not in stays],
        )
    ]


def _may_be_of_an_error(end: Evidence) -> bool:
    """Return whether a program may end like this when a CUDA call fails: it exits or aborts."""
    assert isinstance(end.what, ProcessEnded)
    return end.what.signal in (None, signal.SIGABRT) and end.what.execed is None


def _no_client_left(case: FaultCase) -> list[Incident]:
    """A memory fault that no server noticed, because no client was left."""
    there = orphaned_work.ended_alone(case.group, case.history, case.was_hit)
    if not there or case.now < case.group.began + orphaned_work.SERVER_LAG:
        return []
    end = next(end for end in case.ends() if end.process == there[0].process)
    reason = orphaned_work.reason(there, end)
    if len(there) > 1:
        return [
            case.incident(
                FaultClass.PROCESS,
                Confidence.UNKNOWN,
                reason,
                candidates=there,
                victims=(),
                work_in_flight=True,
            )
        ]
    culprit = case.history.suspect(there[0].process)
    return [case.named(FaultClass.PROCESS, Ground.LEFT_ALONE, reason, culprit, victims=(), work_in_flight=True)]


def _crash(case: FaultCase, end: Evidence, in_flight: bool) -> Incident:
    assert end.process is not None
    assert isinstance(end.what, ProcessEnded)
    how = orphaned_work.how(end)
    if not in_flight:
        settled = case.now >= when(end) + BEFORE and not end.what.kept
        outcome = "no fault followed, so no work of it was in flight" if settled else "a fault may follow from its work"
        if end.what.kept:
            outcome = "its address space was kept, so that work it may have left behind ends without harm"
        return case.named(
            FaultClass.PROCESS,
            Ground.OWN_END,
            f"The client ended {how}; {outcome}.",
            case.history.suspect(end.process),
            victims=(),
            began=when(end),
            work_in_flight=False if settled else None,
        )
    return case.named(
        FaultClass.PROCESS,
        Ground.LEFT_SERVER,
        f"The client ended {how}; of all clients present it alone had left the server when that faulted, and no living "
        "client's queue has a fatal fault: its work was in flight.",
        case.history.suspect(end.process),
        victims=case.present(case.first_gpu_sign()),
        began=when(end),
        work_in_flight=True,
    )


def _other_process(case: FaultCase) -> list[Incident]:
    """A fault in the kernel log that involves no client."""
    if case.involves_clients() or not _has_telling_xid(case):
        return []
    pids = {e.what.pid for e in case.group.anchors if isinstance(e.what, Xid) and e.what.pid is not None}
    strangers = {pid for pid in pids if case.history.of_pid(pid, case.group.began) is None}
    if not strangers and case.present():
        return []
    fault_class = _class_of(case)
    if case.present() and case.now < case.group.began + orphaned_work.SERVER_LAG:
        why = "The kernel log names a process that is no client; whether a client was hit is not known yet."
        return [case.incident(fault_class, Confidence.UNKNOWN, why, victims=())]
    if len(strangers) == 1 and strangers == pids:
        return [
            case.named(
                fault_class,
                Ground.KERNEL_PID,
                "The kernel log names a process that is no client, and no client was hit.",
                Suspect(strangers.pop(), None, False),
                victims=(),
            )
        ]
    return [case.incident(fault_class, Confidence.UNKNOWN, "No client of a lane took part in it.", victims=())]


def _memory_fault(case: FaultCase) -> list[Incident]:
    """A memory fault without a proven culprit: the UVM sensor was absent or not attached."""
    if not _MMU_XIDS & set(case.xids):
        return []
    return sm_fault.by_code(case, FaultClass.MMU) or [
        case.unknown(FaultClass.MMU, "no UVM event queue was attached to the process that did it")
    ]


def _engine(case: FaultCase) -> list[Incident]:
    if not _has_telling_xid(case):
        return []
    return [case.unknown(_class_of(case), "the kernel log's line names no process that can be believed")]


def _has_telling_xid(case: FaultCase) -> bool:
    return any(found.level in TELLING for _, found in case.told_xids)


def _class_of(case: FaultCase) -> FaultClass:
    """Return the class of a fault that is none of the device, by its Xids; echoes of other faults have no say."""
    for number, found in case.told_xids:
        if found.fault_class not in (None, FaultClass.DEVICE) and number not in _ECHO_XIDS:
            return found.fault_class
    return FaultClass.ENGINE


_RULES: Final[tuple[Callable[[FaultCase], list[Incident]], ...]] = (
    _device,
    repeated_alone.rule,
    _came_back,
    _contained_memory_fault,
    _proven_memory_fault,
    _lane,
    _process,
    _no_client_left,
    _other_process,
    _memory_fault,
    sm_fault.rule,
    _engine,
)
