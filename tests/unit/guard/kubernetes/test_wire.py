"""Messages of other programs: field numbers, what is read and what is sent."""

import filecmp
import os
import subprocess
from pathlib import Path

import pytest

from mpsguard.guard.kubernetes.node_pods import gpus_in
from mpsguard.guard.kubernetes.nvsentinel import health_event
from mpsguard.guard.kubernetes.wire import nvsentinel_pb2, pod_resources_pb2
from mpsguard.guard.kubernetes.wire.nvsentinel_pb2 import HealthEvent
from mpsguard.guard.kubernetes.wire.pod_resources_pb2 import ContainerDevices, DeviceList, ListResponse, PodDevices
from tests.harness.guard_process import REPOSITORY
from tests.unit.guard.kubernetes.records import NODE, record, told

UUID = "GPU-8f6a1c4e-1111-2222-3333-444455556666"

# As in NVSentinel's health_event.proto and Kubernetes' pod-resources API v1.
NUMBERS = {
    "HealthEvents": {"version": 1, "events": 2},
    "HealthEvent": {
        "version": 1,
        "agent": 2,
        "component_class": 3,
        "check_name": 4,
        "is_fatal": 5,
        "is_healthy": 6,
        "message": 7,
        "recommended_action": 8,
        "error_code": 9,
        "entities_impacted": 10,
        "metadata": 11,
        "generated_timestamp": 12,
        "node_name": 13,
        "processing_strategy": 16,
    },
    "Entity": {"entity_type": 1, "entity_value": 2},
    "ListRequest": {},
    "ListResponse": {"pods": 1},
    "PodDevices": {"name": 1, "namespace": 2, "containers": 3},
    "ContainerDevices": {"name": 1, "devices": 2},
    "DeviceList": {"resource_name": 1, "device_ids": 2},
}


def test_field_numbers_are_those_of_the_other_program() -> None:
    found = {
        name: {field.name: field.number for field in message.fields}
        for module in (nvsentinel_pb2, pod_resources_pb2)
        for name, message in module.DESCRIPTOR.message_types_by_name.items()
    }
    assert found == NUMBERS
    assert dict(nvsentinel_pb2.RecommendedAction.items()) == {"NONE": 0}
    assert dict(nvsentinel_pb2.ProcessingStrategy.items())["STORE_ONLY"] == 2


def test_the_modules_are_what_their_proto_files_make(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="no grpcio-tools: the modules cannot be made again")
    subprocess.run([REPOSITORY / "scripts" / "generate-wire", tmp_path], check=True, env=os.environ, timeout=60)
    made = tmp_path / "mpsguard" / "guard" / "kubernetes" / "wire"
    names = sorted(path.name for path in made.iterdir())
    assert len(names) == 4
    same, *differences = filecmp.cmpfiles(
        made, REPOSITORY / "mpsguard" / "guard" / "kubernetes" / "wire", names, shallow=False
    )
    assert (sorted(same), differences) == (names, [[], []])


def test_the_kubelets_devices_become_gpus_of_containers() -> None:
    shared = DeviceList(resource_name="nvidia.com/gpu.shared", device_ids=[f"{UUID}::3", f"{UUID}::0"])
    other = DeviceList(resource_name="example.com/nic", device_ids=["GPU-0"])
    odd = DeviceList(resource_name="nvidia.com/gpu", device_ids=["0", "GPU-1\n", "x" * 1000])
    mig = DeviceList(resource_name="nvidia.com/mig-1g.10gb", device_ids=["MIG-1"])
    containers = [
        ContainerDevices(name="worker", devices=[shared, other, mig]),
        ContainerDevices(name="sidecar", devices=[other, odd]),
    ]
    answer = ListResponse(pods=[PodDevices(name="train-0", namespace="team-a", containers=containers)])
    assert gpus_in(answer) == {("team-a", "train-0", "worker"): (UUID, "MIG-1")}


def test_a_health_event_cordons_no_node_and_names_pod_gpu_and_xid() -> None:
    event: HealthEvent = health_event(told(record()), NODE, {"0000:18:00": UUID})
    assert (event.is_fatal, event.is_healthy, event.recommended_action) == (False, False, nvsentinel_pb2.NONE)
    assert event.processing_strategy == nvsentinel_pb2.STORE_ONLY
    assert (event.agent, event.check_name, event.node_name) == ("mpsguard", "MpsClientFault", NODE)
    assert [(each.entity_type, each.entity_value) for each in event.entities_impacted] == [
        ("PCI", "0000:18:00"),
        ("GPU_UUID", UUID),
    ]
    assert list(event.error_code) == ["31"]
    assert event.metadata["pod"] == "pod-1"
    assert event.metadata["confidence"] == "proven"
    assert "team-a/pod-1" in event.message
    assert event.generated_timestamp.seconds == 1_700_001_000


def test_a_gpu_that_is_not_known_is_not_made_up() -> None:
    assert [each.entity_type for each in health_event(told(record()), NODE, {}).entities_impacted] == ["PCI"]
