"""Incidents between pods, as the guard's journal has them."""

from mpsguard.guard.incident import Confidence, FaultClass, Incident, Suspect
from mpsguard.guard.journal.records import RecordedIncident
from mpsguard.guard.kubernetes.notices import Cast, cast_of
from mpsguard.guard.kubernetes.sink import ToldIncident
from mpsguard.guard.model import Client
from mpsguard.guard.pods import Pod, PodContainer, PodTable
from mpsguard.linux.identity import ProcessKey

NODE = "node-1"
BEGAN = 1000.0
OFFSET = 1_700_000_000.0


def pod(number: int, namespace: str = "team-a") -> Pod:
    """Return one pod with one container."""
    container = PodContainer(f"{number:064x}", "worker")
    return Pod(f"00000000-0000-4000-8000-{number:012x}", namespace, f"pod-{number}", (container,))


CULPRIT = pod(1)
VICTIM = pod(2, "team-b")
TABLE = PodTable([CULPRIT, VICTIM])


def suspect(pid: int) -> Suspect:
    """Return a process that is a client."""
    return Suspect(pid, ProcessKey(pid, pid * 10), client=True)


def client(pid: int, where: Pod | None) -> Client:
    """Return a client in a pod, or in none."""
    container = where.containers[0].id if where else None
    cgroup = f"/kubepods/pod{where.uid}/{container}" if where else "/user.slice"
    return Client(ProcessKey(pid, pid * 10), 0, 0, "secret --token=x", cgroup, container, None, "default", "lane", 0.0)


def record(
    *clients: Client,
    culprit: int | None = 1,
    victims: tuple[int, ...] = (2,),
    fault_class: FaultClass = FaultClass.MMU,
    confidence: Confidence = Confidence.PROVEN,
    name: str = "20260101-000000-1",
    began: float = BEGAN,
) -> RecordedIncident:
    """Return an incident; without ``clients``, of process 1 in `CULPRIT` that hit process 2 in `VICTIM`."""
    return RecordedIncident(
        id=name,
        boot_id="boot",
        wall_offset=OFFSET,
        recorded_at=0.0,
        updated_at=0.0,
        incident=Incident(
            fault_class=fault_class,
            began=began,
            ended=began,
            gpu="0000:18:00",
            lane="default-0",
            culprit=suspect(culprit) if culprit is not None else None,
            candidates=() if culprit is not None else tuple(suspect(each.process.pid) for each in clients),
            victims=tuple(suspect(pid) for pid in victims),
            confidence=confidence,
            reason="",
            xids=(31,),
            evidence=(),
        ),
        clients=clients or (client(1, CULPRIT), client(2, VICTIM)),
        decisions=(),
        versions={},
        evidence_left_out=0,
    )


def told(of: RecordedIncident) -> ToldIncident:
    """Return an incident with its pods."""
    return ToldIncident(of, cast(of))


def cast(of: RecordedIncident) -> Cast:
    """Return the pods of an incident."""
    return cast_of(of, TABLE)
