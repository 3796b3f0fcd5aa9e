"""What the pods and the node of an incident are told. Pure functions."""

import hashlib
from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.guard.incident import FaultClass, Suspect
from mpsguard.guard.journal.records import RecordedIncident
from mpsguard.guard.model import Client
from mpsguard.guard.pods import ClientPod, PodTable
from mpsguard.linux.identity import ProcessKey

REASON: Final = "MpsClientFault"
MAX_NOTE: Final = 1024
"""Characters of an Event's note; the API server refuses more (validation of events.k8s.io/v1)."""
_NAMED: Final = 8
"""Victims' pods that a note names; the others are counted."""

_FAULTS: Final = {
    FaultClass.MMU: "a memory fault",
    FaultClass.SM: "a fault inside a kernel",
    FaultClass.MMU_OR_SM: "a memory fault or one inside a kernel",
    FaultClass.ENGINE: "a fault of a GPU engine",
    FaultClass.PROCESS: "a process that ended with work on the GPU",
    FaultClass.LANE: "a failure of the MPS daemon",
    FaultClass.DEVICE: "a fault of the GPU itself",
}


_OF_NO_CLIENT: Final = (FaultClass.LANE, FaultClass.DEVICE)


class NamedPods(StrEnum):
    """Whether a pod is told the names of pods in other namespaces."""

    ALL = "all"
    NAMESPACE = "namespace"


class Subject(msgspec.Struct, frozen=True):
    """The object that a notice is about."""

    kind: str
    """Pod or Node."""
    namespace: str
    """"" for a node."""
    name: str
    uid: str


class Notice(msgspec.Struct, frozen=True):
    """One thing to be told about one object."""

    subject: Subject
    related: Subject | None
    """The culprit's pod, if it is another one."""
    note: str
    key: str
    """The same for notices that are repetitions of each other."""
    incident: str
    at: float
    """UNIX seconds."""


class Cast(msgspec.Struct, frozen=True):
    """The pods of an incident."""

    culprit: ClientPod | None
    victims: tuple[ClientPod, ...]
    """Each once, without the culprit's."""
    hit: int
    """Clients that were hit, without the culprit."""


def cast_of(record: RecordedIncident, pods: PodTable) -> Cast:
    """Return the pods of an incident's culprit and victims."""
    incident = record.incident
    clients = {client.process: client for client in record.clients}
    culprit = _pod(incident.culprit, clients, pods) if incident.culprit else None
    others = [each for each in incident.victims if incident.culprit is None or each.pid != incident.culprit.pid]
    found = [_pod(each, clients, pods) for each in others]
    victims = {each.uid: each for each in found if each is not None and (culprit is None or each.uid != culprit.uid)}
    return Cast(culprit, tuple(victims.values()), len(others))


def notices(record: RecordedIncident, cast: Cast, node: str, names: NamedPods) -> tuple[Notice, ...]:
    """Return what is to be told of an incident; empty for the end of a process that harmed no other one."""
    incident = record.incident
    if not notable(record, cast):
        return ()
    fault = _fault(record)
    told = []
    if cast.culprit is not None:
        shown = tuple(each for each in cast.victims if _may_name(names, cast.culprit, each))
        hurt = _listed(shown, cast.hit) if cast.hit else "no other client"
        told.append(
            (_subject(cast.culprit), f"GPU work of this pod{_container(cast.culprit)} caused {fault}; it hit {hurt}.")
        )
    for victim in cast.victims:
        culprit = _culprit(record, cast.culprit, names, victim)
        told.append((_subject(victim), f"GPU work of this pod{_container(victim)} was hit by {fault}.{culprit}"))
    if cast.hit or incident.fault_class in _OF_NO_CLIENT:
        told.append((Subject("Node", "", node, node), node_note(record, cast)))
    return tuple(_notice(record, cast, subject, text) for subject, text in told)


def notable(record: RecordedIncident, cast: Cast) -> bool:
    """Return whether an incident is told: not the end of a process that harmed no other one."""
    return record.incident.fault_class is not FaultClass.PROCESS or cast.hit > 0


def node_note(record: RecordedIncident, cast: Cast) -> str:
    """Return what is said of an incident to those that operate the node."""
    hurt = f" that hit {_listed(cast.victims, cast.hit)}" if cast.hit else ""
    return f"On this node was {_fault(record)}{hurt}.{_culprit(record, cast.culprit, NamedPods.ALL, None)}"


def _notice(record: RecordedIncident, cast: Cast, subject: Subject, text: str) -> Notice:
    incident = record.incident
    culprit = cast.culprit
    related = _subject(culprit) if culprit is not None and culprit.uid != subject.uid else None
    by = culprit.uid if culprit is not None else ""
    identity = "\0".join((subject.uid, by, incident.fault_class, incident.confidence))
    where = f"Incident {record.id}; on the node: mpsguard-ctl incident show {record.id}"
    return Notice(
        subject,
        related,
        f"{text} {where}"[:MAX_NOTE],
        hashlib.sha256(identity.encode()).hexdigest()[:32],
        record.id,
        incident.began + record.wall_offset,
    )


def _fault(record: RecordedIncident) -> str:
    incident = record.incident
    xids = f", Xid {', '.join(map(str, incident.xids))}" if incident.xids else ""
    lane = f" on lane {incident.lane}" if incident.lane else ""
    return f"{_FAULTS[incident.fault_class]} (class {incident.fault_class}, {incident.confidence}{xids}){lane}"


def _culprit(record: RecordedIncident, pod: ClientPod | None, names: NamedPods, told: ClientPod | None) -> str:
    """Return a sentence about the culprit, for the pod ``told`` or for the node; "" for a fault of no client."""
    incident = record.incident
    if incident.culprit is None:
        number = len(incident.candidates)
        if incident.fault_class in _OF_NO_CLIENT and not number:
            return ""
        return f" Culprit: not known, one of {number} processes." if number else " Culprit: not known."
    if pod is None:
        return f" Culprit: process {incident.culprit.pid}, in no pod that is known."
    if told is not None and not _may_name(names, told, pod):
        return " Culprit: a pod of another namespace."
    return f" Culprit: pod {pod}{_container(pod)}."


def _may_name(names: NamedPods, told: ClientPod, named: ClientPod) -> bool:
    return names is NamedPods.ALL or told.namespace == named.namespace


def _listed(pods: tuple[ClientPod, ...], clients: int) -> str:
    count = f"{clients} other client{'' if clients == 1 else 's'}"
    if not pods:
        return count
    more = f" and {len(pods) - _NAMED} more" if len(pods) > _NAMED else ""
    return f"{count} in pods {', '.join(str(each) for each in pods[:_NAMED])}{more}"


def _container(pod: ClientPod) -> str:
    return f" (container {pod.container})" if pod.container else ""


def _subject(pod: ClientPod) -> Subject:
    return Subject("Pod", pod.namespace, pod.name, pod.uid)


def _pod(suspect: Suspect, clients: dict[ProcessKey, Client], pods: PodTable) -> ClientPod | None:
    client = clients.get(suspect.process) if suspect.process is not None else None
    return pods.of(client) if client is not None else None
