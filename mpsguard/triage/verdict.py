"""Triage: evidence in, incidents out. A pure function, so that a recorded incident can be judged again.

The rules follow what was measured under MPS on the stock driver (H200, 580.159.04):

* A fatal fault in a client's own UVM event queue is of that client and no other: proof, 2 ms after the access.
* The pid in an Xid 31 line is mostly an innocent client's, the one in an Xid 43 line the server's, and the client that
  the server's log says "encountered a fatal GPU error" is mostly innocent too: none of them names anybody here.
* With the patched nvidia-uvm a fault is contained, and the module says so: the queue tells of it as well, no Xid comes.
* A client that ends with work in flight brings an Xid 31 upon all others, with no fatal event in any living client's
  queue; the server tears down all clients but that one, and its process is seen to end some 0.08 s later.
* Without another client the server says nothing, and the work may come back in a later client's queue: see
  `mpsguard.triage.left_behind`.
* An SM fault leaves no name at all in the driver's log: its candidates are the clients that were there, unless a GPU
  core dump tells where the SM stopped (`whose_code`).

Not knowing is a verdict: `Confidence.UNKNOWN`, the candidates, and the reason.
"""

import signal
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

import msgspec

from mpsguard.evidence import DeviceHealth, Evidence, LaneChanged, ProcessEnded, Xid
from mpsguard.incident import Confidence, FaultClass, Incident, Suspect
from mpsguard.triage import absorbed, catalog, left_behind
from mpsguard.triage.case import Case
from mpsguard.triage.catalog import Level
from mpsguard.triage.episode import BEFORE, episodes, in_order, is_anchor
from mpsguard.triage.population import Member, Population, when
from mpsguard.triage.whose_code import whose_code

_SM_XIDS: Final = frozenset({13})
_MMU_XIDS: Final = frozenset({31})
_KERNEL_LOG_LAG: Final = 0.25
"""Seconds by which the kernel log's line may come after the server's first word (35 ms seen)."""

_AFTERMATH: Final = 60.0
"""Seconds after a fault within which the crash of a client that it hit is its consequence."""

_ECHO_XIDS: Final = frozenset({43, 45})


def triage(evidence: Iterable[Evidence], now: float = inf) -> tuple[Incident, ...]:
    """The incidents that ``evidence`` tells of, oldest first; the order of ``evidence`` does not matter.

    ``now`` is when it is judged, on the evidence's clock: what may still come is not ruled out. A record is judged
    with all of it in, which is the default.
    """
    ordered = in_order(evidence)
    population = Population(ordered)
    servers = left_behind.servers(ordered)
    unnoticed: dict[int, Incident] = {}
    found: list[Incident] = []
    for episode in episodes(ordered, population):
        # Who was hit before is no cause of what comes after, however it ends.
        hit = frozenset(suspect.process for earlier in found for suspect in earlier.victims)
        judged = _judge(Case(episode, population, now, hit, servers=servers, unnoticed=unnoticed))
        found += judged
        if judged:
            unnoticed |= dict.fromkeys(left_behind.unnoticed_pages(episode), judged[0])
    found += absorbed.incidents(ordered, population)
    found.sort(key=lambda incident: (incident.began, incident.fault_class.value))
    return tuple(incident for index, incident in enumerate(found) if not _is_consequence(incident, found[:index]))


def _is_consequence(incident: Incident, earlier: Sequence[Incident]) -> bool:
    """Whether a crash is only how somebody died whom an earlier fault had hit: programs abort on their CUDA error."""
    if incident.fault_class is not FaultClass.PROCESS or incident.culprit is None or incident.victims:
        return False
    return any(
        incident.culprit in (*before.victims, *before.candidates, before.culprit)
        and incident.began - before.began <= _AFTERMATH
        for before in earlier
    )


def _judge(case: Case) -> list[Incident]:
    # The first rule that applies decides what happened; a proven culprit beats every hint.
    for rule in _RULES:
        incidents = rule(case)
        if incidents:
            return incidents
    return []


def _device(case: Case) -> list[Incident]:
    """The GPU itself is in trouble: whoever runs on it is a victim, nobody a culprit."""
    if Level.DEVICE not in case.levels and not any(
        isinstance(e.what, DeviceHealth) and e.what.fatal for e in case.episode.evidence
    ):
        return []
    return [
        case.incident(
            FaultClass.DEVICE,
            Confidence.PROVEN,
            "The device itself reports the fault: no process is to blame.",
            victims=case.on_any_lane(),
        )
    ]


def _contained_memory_fault(case: Case) -> list[Incident]:
    """Faults that the kernel module kept with their clients, and beside them those that it could not keep."""
    contained = case.contained()
    if not contained:
        return []
    incidents = [
        case.incident(
            FaultClass.MMU,
            Confidence.PROVEN,
            "The kernel module contained the fault and named the process; nobody else was hurt.",
            culprit=case.population.suspect(process),
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


def _came_back(case: Case) -> list[Incident]:
    """Work that an ended client left on the GPU faults in the queue of one that came since: that one is hit by it."""
    for process, evidence in case.fatal_faults().items():
        before = left_behind.came_back(evidence, case.population.member(process), case.unnoticed)
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
            return [msgspec.structs.replace(incident, candidates=before.candidates)]
    return []


def _proven_memory_fault(case: Case) -> list[Incident]:
    return [
        case.incident(
            FaultClass.MMU,
            Confidence.PROVEN,
            "The fatal fault was in this process' own UVM event queue, and in no other's.",
            culprit=case.population.suspect(process),
            began=when(evidence),
        )
        for process, evidence in case.fatal_faults().items()
    ]


def _lane(case: Case) -> list[Incident]:
    """A control daemon or a server ended: its clients end with it, by nobody's doing."""
    downs = [e for e in case.episode.anchors if isinstance(e.what, LaneChanged)]
    exits = case.said("server_exited")
    if not downs and not exits:
        return []
    if case.first_gpu_sign() is not None and case.said("fault_begins", "culprit"):
        # The server ended because of a fault: that is what the incident is about.
        return []
    what = "control daemon" if downs else "server"
    return [case.incident(FaultClass.LANE, Confidence.PROVEN, f"The lane's {what} ended; its clients end with it.")]


def _process(case: Case) -> list[Incident]:
    """A client ended, and either the fault followed from its work or nothing followed at all.

    Whose work it was shows in what the server does not say: it tears down every client it has, and the one whose
    process is ending has left it already.
    """
    ends = case.ends()
    sign = case.first_gpu_sign()
    if sign is None:
        return [_crash(case, end, False) for end in ends if is_anchor(end)]
    if set(case.xids) & _SM_XIDS or (43 in case.xids and not set(case.xids) & _MMU_XIDS):
        return []
    if not case.xids and case.now < sign + _KERNEL_LOG_LAG:
        # The kernel log will tell in a moment whether it was an SM fault: no accusation before.
        return []
    kept = case.torn_down()
    gone = [end for end in ends if end.process not in case.hit_before and end.process not in kept]
    if not set(case.xids) & _MMU_XIDS:
        # Nothing says that it was a memory fault: whoever may have ended of its own CUDA error is accused of nothing.
        gone = [end for end in gone if not _may_be_of_an_error(end)]
    if not kept or not gone:
        return []
    if len(gone) == 1:
        return [_crash(case, gone[0], True)]
    members = [member for end in gone if (member := case.population.member(end.process)) is not None]
    return [
        case.incident(
            FaultClass.PROCESS,
            Confidence.UNKNOWN,
            f"{len(gone)} clients had left the server when it faulted; the work of any of them may have caused it.",
            candidates=members,
            victims=[member for member in case.present(sign) if member not in members],
        )
    ]


def _may_be_of_an_error(end: Evidence) -> bool:
    """Whether a program ends like this when a CUDA call fails: it exits or aborts."""
    assert isinstance(end.what, ProcessEnded)
    return end.what.signal in (None, signal.SIGABRT) and end.what.execed is None


def _nobody_left(case: Case) -> list[Incident]:
    """A memory fault that no server noticed, for no client was left."""
    there = left_behind.ended_alone(case.episode, case.population, case.servers, case.hit_before)
    if not there or case.now < case.episode.began + left_behind.SERVER_LAG:
        return []
    end = next(end for end in case.ends() if end.process == there[0].process)
    confidence, reason = left_behind.reason(there, end)
    return [
        case.incident(
            FaultClass.PROCESS,
            confidence,
            reason,
            culprit=case.population.suspect(there[0].process) if len(there) == 1 else None,
            candidates=there if len(there) > 1 else (),
            victims=(),
            work_in_flight=True,
        )
    ]


def _crash(case: Case, end: Evidence, in_flight: bool) -> Incident:
    assert end.process is not None
    assert isinstance(end.what, ProcessEnded)
    how = left_behind.how(end)
    if not in_flight:
        settled = case.now >= when(end) + BEFORE and not end.what.kept
        outcome = "no fault followed, so no work of it was in flight" if settled else "a fault may follow from its work"
        if end.what.kept:
            outcome = "its address space was kept, so that work it may have left behind ends without harm"
        return case.incident(
            FaultClass.PROCESS,
            Confidence.PROVEN,
            f"The client ended {how}; {outcome}.",
            culprit=case.population.suspect(end.process),
            victims=(),
            began=when(end),
            work_in_flight=False if settled else None,
        )
    return case.incident(
        FaultClass.PROCESS,
        Confidence.LIKELY,
        f"The client ended {how}; of all clients present it alone had left the server when that faulted, and no living "
        "client's queue has a fatal fault: its work was in flight.",
        culprit=case.population.suspect(end.process),
        victims=case.present(case.first_gpu_sign()),
        began=when(end),
        work_in_flight=True,
    )


def _other_process(case: Case) -> list[Incident]:
    """The kernel log tells of a fault that no client of ours took part in."""
    if case.involves_clients() or not case.xids:
        return []
    pids = {e.what.pid for e in case.episode.anchors if isinstance(e.what, Xid) and e.what.pid is not None}
    strangers = {pid for pid in pids if case.population.of_pid(pid, case.episode.began) is None}
    if not strangers and case.present():
        return []
    fault_class = _class_of(case)
    if case.present() and case.now < case.episode.began + left_behind.SERVER_LAG:
        why = "The kernel log names a process that is no client; whether a client was hit is not known yet."
        return [case.incident(fault_class, Confidence.UNKNOWN, why, victims=())]
    if len(strangers) == 1 and strangers == pids:
        return [
            case.incident(
                fault_class,
                Confidence.LIKELY,
                "The kernel log names a process that is no client, and no client was hit.",
                culprit=Suspect(strangers.pop(), None, False),
                victims=(),
            )
        ]
    return [case.incident(fault_class, Confidence.UNKNOWN, "No client of a lane took part in it.", victims=())]


def _memory_fault(case: Case) -> list[Incident]:
    """A memory fault without proof of whose it was: the UVM sensor was absent or not attached."""
    if not _MMU_XIDS & set(case.xids):
        return []
    return _by_code(case, FaultClass.MMU) or [
        _unknown(case, FaultClass.MMU, "no UVM event queue was attached to the process that did it")
    ]


def _sm_fault(case: Case) -> list[Incident]:
    if not _SM_XIDS & set(case.xids) and not case.said("fault_begins", "sticky", "teardown"):
        return []
    present = case.present()
    left = [member for member in case.left_before() if member not in present]
    if len(present) == 1 and not left:
        return [
            case.incident(
                FaultClass.SM,
                Confidence.PROVEN,
                "It was the only client on the lane.",
                culprit=case.population.suspect(present[0].process),
            )
        ]
    why = "the stock driver does not say which client's kernel raised an SM exception"
    return _by_code(case, FaultClass.SM) or [_unknown(case, FaultClass.SM, why, left if len(present) < 2 else ())]


def _by_code(case: Case, fault_class: FaultClass) -> list[Incident]:
    """By the instruction that an SM stopped at, if a GPU core dump was written by anybody on the lane."""
    present = case.present()
    found = whose_code(case.episode.evidence, [member.process for member in present])
    if found.culprits:
        return [
            case.incident(fault_class, found.confidence, found.reason, culprit=case.population.suspect(process))
            for process in found.culprits
        ]
    left = [member for member in present if member.process in found.candidates]
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


def _engine(case: Case) -> list[Incident]:
    if not set(case.xids) - _ECHO_XIDS:
        return []
    return [_unknown(case, _class_of(case), "the kernel log's line names no process that can be believed")]


def _unknown(case: Case, fault_class: FaultClass, why: str, left: Sequence[Member] = ()) -> Incident:
    """``left``: clients that had just ended, who may have done it as well."""
    candidates = (*case.present(), *left)
    return case.incident(
        fault_class,
        Confidence.UNKNOWN,
        f"The culprit is one of {len(candidates)} clients: {why}.",
        candidates=candidates,
    )


def _class_of(case: Case) -> FaultClass:
    for number in case.xids:
        suggested = catalog.lookup(number).fault_class
        if suggested is not None and number not in _ECHO_XIDS:
            return suggested
    return FaultClass.ENGINE


_RULES: Final[tuple[Callable[[Case], list[Incident]], ...]] = (
    _device,
    _came_back,
    _contained_memory_fault,
    _proven_memory_fault,
    _lane,
    _process,
    _nobody_left,
    _other_process,
    _memory_fault,
    _sm_fault,
    _engine,
)
