"""Incidents as triage gives them, with every kind of observation, and strangers' texts of the worst sort."""

from __future__ import annotations

from typing import Any

import msgspec

from mpsguard.guard.evidence import (
    ClientCame,
    DeviceHealth,
    Evidence,
    LaneChanged,
    Lost,
    Observation,
    ProcessEnded,
    ServerSays,
    Source,
    Trust,
    UvmFault,
    Xid,
)
from mpsguard.guard.incident import Confidence, FaultClass, Incident, Suspect
from mpsguard.guard.journal.records import RecordedDecision, RecordedIncident
from mpsguard.guard.model import Client
from mpsguard.linux.identity import ProcessKey

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\x1b[31m\u202e&amp;'\""
GPU = "0000:18:00"
BEGAN = 5000.0
CULPRIT, VICTIM, OTHER = ProcessKey(4242, 77_001), ProcessKey(4243, 77_002), ProcessKey(4244, 77_003)
COMMANDS = {
    CULPRIT: "python train.py --batch 512 --model resnet",
    VICTIM: f"python serve.py {HOSTILE}",
    OTHER: "tritonserver",
}


def suspect(process: ProcessKey) -> Suspect:
    return Suspect(process.pid, process, True)


def client(process: ProcessKey) -> Client:
    return Client(process, 1000, 1000, COMMANDS[process], "/job", None, None, "default", "default", 1_790_000_000.0)


def seen(source: Source, ms: float, what: Observation, process: ProcessKey | None = None, **more: Any) -> Evidence:
    at = BEGAN + ms / 1000
    return Evidence(source, at + 0.0004, what, at, gpu=GPU, process=process, **more)


EVIDENCE = (
    *(seen(Source.LANE, -90_000, ClientCame("default", "default"), who) for who in (CULPRIT, VICTIM, OTHER)),
    seen(
        Source.UVM,
        0,
        UvmFault(0x7F00DEAD0000, "write", "invalid PDE", True),
        CULPRIT,
        uncertainty=0.0002,
        trust=Trust.PROOF,
    ),
    seen(Source.KERNEL_LOG, 2.1, Xid(31, 4243, f"MMU Fault: ENGINE GRAPHICS {HOSTILE}", gpc=2, tpc=3), serial="91"),
    seen(Source.SERVER_LOG, 2.8, ServerSays("fault_begins", 900)),
    seen(Source.SERVER_LOG, 4.6, ServerSays("culprit", 900, 4242), CULPRIT, trust=Trust.HINT),
    seen(Source.LANE, 5.2, LaneChanged("default", "default", "FAULT", "server 900 says FAULT")),
    seen(Source.NVML, 9.9, DeviceHealth("row_remap_pending", 0, False)),
    seen(Source.PROCESSES, 11.7, ProcessEnded(1, None, False, True), CULPRIT, trust=Trust.PROOF),
    seen(Source.PROCESSES, 13.9, ProcessEnded(None, 6, False, None), VICTIM, trust=Trust.PROOF),
    seen(Source.PROCESSES, 14.4, ProcessEnded(None, 6, False, None), OTHER, trust=Trust.PROOF),
    seen(Source.KERNEL_LOG, 21.0, Lost(3)),
)

INCIDENT = Incident(
    fault_class=FaultClass.MMU,
    began=BEGAN,
    ended=BEGAN + 0.021,
    gpu=GPU,
    lane="default",
    culprit=suspect(CULPRIT),
    candidates=(),
    victims=(suspect(VICTIM), suspect(OTHER)),
    confidence=Confidence.PROVEN,
    reason="The fatal fault was in this process' own UVM event queue, and in no other's.",
    xids=(31,),
    evidence=EVIDENCE,
)

CASE = RecordedIncident(
    id="20261120-153012-1",
    boot_id="b",
    wall_offset=1_795_188_612.25 - BEGAN,
    recorded_at=1_795_188_612.27,
    updated_at=1_795_188_612.28,
    incident=INCIDENT,
    clients=tuple(map(client, (CULPRIT, VICTIM, OTHER))),
    decisions=(RecordedDecision(1_795_188_612.25 + 0.006, "decided", "park newcomers until the lane is ready", {}),),
    versions={"mpsguard": "0.1", "kernel": "6.8"},
    evidence_left_out=0,
)


def case(**changes: Any) -> RecordedIncident:
    """The example with other fields in its incident."""
    return msgspec.structs.replace(CASE, incident=msgspec.structs.replace(INCIDENT, **changes))


def crowd(clients: int = 26) -> RecordedIncident:
    """A fault that no sensor tells more of than that it hit all clients, each of which says the same."""
    processes = [ProcessKey(5000 + number, 90_000 + number) for number in range(clients)]
    command = "python -m service.worker --model resnet50 --batch 512 --queue tcp://10.0.0.1:9000 --name worker-"
    evidence = [seen(Source.LANE, -90_000 + n, ClientCame("default", "default"), p) for n, p in enumerate(processes)]
    evidence.append(seen(Source.SERVER_LOG, 0, ServerSays("fault_begins", 900)))
    for number, process in enumerate(processes):
        evidence.append(seen(Source.SERVER_LOG, 1 + number, ServerSays("teardown", 900, process.pid)))
        evidence.append(seen(Source.SERVER_LOG, 1.5 + number, ServerSays("sticky", 900, process.pid)))
        evidence.append(seen(Source.PROCESSES, 100 + number, ProcessEnded(3, None, False, None), process))
    suspects = tuple(map(suspect, processes))
    record = case(
        fault_class=FaultClass.MMU_OR_SM,
        culprit=None,
        candidates=suspects,
        victims=suspects,
        confidence=Confidence.UNKNOWN,
        reason=f"The culprit is one of {clients} clients: nothing tells which.",
        xids=(),
        evidence=tuple(evidence),
    )
    known = tuple(
        Client(process, 1000, 1000, f"{command}{number}", "/job", None, None, "default", "default", 1_790_000_000.0)
        for number, process in enumerate(processes)
    )
    return msgspec.structs.replace(record, clients=known, decisions=())
