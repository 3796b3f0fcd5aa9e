"""A guard at one moment, as the page shows it: a lane in each state, clients of every sort, an incident."""

from __future__ import annotations

import msgspec

from mpsguard.guard.incident import Confidence, FaultClass, Suspect
from mpsguard.guard.journal.records import IncidentSummary
from mpsguard.guard.model import Client, LaneReport, LaneState, Watched
from mpsguard.guard.report.overview import Overview, OverviewClient, OverviewGpu, OverviewLane, OverviewSensor
from mpsguard.linux.identity import ProcessKey

AT = 1_795_508_355.0
POD = "3f0c1c52-8a0e-4c3d-9a55-0c1e7d2b9f10"
CONTAINER = "9b2d4e6f8a1c" + "0" * 52


def lane(name: str, role: str, state: LaneState, reason: str, *, clients: int = 0) -> OverviewLane:
    report = LaneReport(name, "default", state, reason, AT - 3 * 3600, "/run/p", "/var/log/l")
    return OverviewLane(report, role, clients, waiting=0)


def client(
    pid: int, uid: int, command: str, memory: int | None = None, *, reason: str = "", **more: object
) -> OverviewClient:
    known = Client(
        ProcessKey(pid, 10 * pid), uid, uid, command, "", None, None, "default", "default-0", AT - 42.0 * (pid % 100)
    )
    pod = str(more.pop("pod", ""))
    return OverviewClient(
        msgspec.structs.replace(known, **more), memory, pod, Watched.YES if not reason else Watched.NOT_YET, reason
    )


def incident(name: str, ago: float, fault: FaultClass, **more: object) -> IncidentSummary:
    began = AT - ago
    whole = IncidentSummary(
        id=name,
        began=began,
        ended=began + 0.2,
        fault_class=fault,
        gpu="0000:18:00.0",
        lane="default-0",
        culprit=None,
        culprit_command=None,
        candidates=(),
        victims=(),
        confidence=Confidence.UNKNOWN,
        reason="",
        xids=(),
    )
    return msgspec.structs.replace(whole, **more)


def suspect(pid: int) -> Suspect:
    return Suspect(pid, ProcessKey(pid, 10 * pid), True)


EXAMPLE = Overview(
    host="gpu-17",
    version="0.1.0",
    at=AT,
    started_at=AT - 3 * 3600,
    health="degraded",
    problems=("lane default-1 is INITIALIZING: its control daemon is starting",),
    lanes=(
        lane("default-0", "active", LaneState.ACTIVE, "server 27261 says ACTIVE", clients=5),
        lane("default-1", "standby", LaneState.INITIALIZING, "its control daemon is starting"),
    ),
    gpus=(OverviewGpu("0000:18:00", "NVIDIA H200", 21 << 30, 141 << 30, 4),),
    clients=(
        client(27255, 1001, "python serve.py --model resnet50", 3 << 30, service_class="critical", pod=POD),
        client(27275, 1002, "python train.py --epochs 90", 11 << 30, service_class="batch", sm_share=40.0),
        client(27280, 1002, "python prepare.py", 600 << 20, sm_share=40.0, container=CONTAINER),
        client(27291, 1003, "tritonserver --model-repository=/models", 5 << 30, container=CONTAINER),
        client(27311, 1004, "./simulate --steps 100000 --grid 512x512x512", reason="it has nothing of nvidia-uvm open"),
    ),
    incidents=(
        incident(
            "20261124-081915-2",
            240.0,
            FaultClass.MMU,
            culprit=suspect(27283),
            culprit_command="python broken.py",
            victims=(suspect(27283), suspect(27284), suspect(27285)),
            confidence=Confidence.PROVEN,
            xids=(31,),
        ),
        incident("20261123-193002-1", 50_000.0, FaultClass.SM, candidates=(suspect(11), suspect(12)), xids=(13, 43)),
    ),
    sensors=(
        OverviewSensor("uvm", True, "5 address spaces watched"),
        OverviewSensor("kernel log", True, "reading /dev/kmsg"),
        OverviewSensor("nvml", True, "1 GPU"),
        OverviewSensor("gpu cores", False, "no core_directory"),
    ),
)
