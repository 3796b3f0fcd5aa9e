"""Which pod a client is in, and which pods the guard takes."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mpsguard.guard.control_api.messages.clients import PodsArguments
from mpsguard.guard.metrics.guard_state import GuardState, GuardStateMetrics
from mpsguard.guard.model import Client
from mpsguard.guard.pods import MAX_PODS, ClientPod, Pod, PodContainer, PodTable
from mpsguard.linux.identity import ProcessKey

UID = "0f5a1c4e-1111-4222-8333-444455556666"
OTHER = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
CONTAINER = "c" * 64
POD = Pod(UID, "team-a", "train-0", (PodContainer(CONTAINER, "worker", ("GPU-1",)),))
STRANGER = Pod(OTHER, "team-b", "serve-0")
SYSTEMD = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
CGROUPFS = f"/kubepods/burstable/pod{UID}/{CONTAINER}"
CLIENT = Client(ProcessKey(7, 70), 0, 0, "python", SYSTEMD, CONTAINER, None, "default", "default-0", 0.0)


@pytest.mark.parametrize("cgroup", [SYSTEMD, CGROUPFS])
def test_a_client_is_in_the_pod_of_its_control_group(cgroup: str) -> None:
    found = PodTable([STRANGER, POD]).of(replace(CLIENT, cgroup=cgroup))
    assert found == ClientPod(UID, "team-a", "train-0", "worker", ("GPU-1",))


def test_a_container_cannot_pass_for_another_pod() -> None:
    # It may make control groups below its own, as a privileged one can.
    inside = replace(CLIENT, cgroup=f"{SYSTEMD}/pod{OTHER}/{'e' * 64}", container="e" * 64)
    assert PodTable([STRANGER, POD]).of(inside) == ClientPod(UID, "team-a", "train-0")


def test_a_user_cannot_pass_for_a_pod_by_the_name_of_a_group_of_its_own() -> None:
    delegated = replace(CLIENT, cgroup=f"/user.slice/user-1000.slice/user@1000.service{SYSTEMD}")
    assert PodTable([STRANGER, POD]).of(delegated) is None


def test_a_client_outside_of_known_pods_has_none() -> None:
    for cgroup in ("/user.slice", SYSTEMD.replace("1111", "9999"), ""):
        assert PodTable([POD]).of(replace(CLIENT, cgroup=cgroup)) is None


GOOD: dict[str, Any] = msgspec.to_builtins(POD)


@pytest.mark.parametrize(
    "wrong",
    [
        {"uid": "../etc"},
        {"uid": f"{UID}\n"},
        {"namespace": "a" * 64},
        {"namespace": 'x"} 1\n'},
        {"name": "a" * 254},
        {"name": "-a"},
        {"containers": [{"id": "c" * 63, "name": "worker"}]},
        {"containers": [{"id": CONTAINER, "name": "worker", "gpus": ["GPU-1\n"]}]},
        {"containers": [{"id": CONTAINER, "name": "worker"}] * 65},
    ],
)
def test_a_pod_with_a_name_that_kubernetes_does_not_allow_is_refused(wrong: dict[str, Any]) -> None:
    assert msgspec.convert({"pods": [GOOD]}, PodsArguments).pods == (POD,)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"pods": [GOOD | wrong]}, PodsArguments)


def test_no_more_pods_are_taken_than_a_node_has() -> None:
    msgspec.convert({"pods": [GOOD] * MAX_PODS}, PodsArguments)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"pods": [GOOD] * (MAX_PODS + 1)}, PodsArguments)


def samples(state: GuardState) -> dict[str, dict[str, str]]:
    metrics = GuardStateMetrics()
    metrics.state = state
    return {sample.name: sample.labels for family in metrics.collect() for sample in family.samples}


def test_series_of_a_client_name_its_pod_as_those_of_dcgm_exporter_do() -> None:
    state = GuardState(
        clients=(CLIENT,),
        pods={CLIENT.process: ClientPod(UID, "team-a", "train-0", "worker")},
        memory={(7, "0000:18:00"): 5},
        gpu_uuids={"0000:18:00": "GPU-1"},
    )
    named = {"namespace": "team-a", "pod": "train-0", "container": "worker"}
    assert samples(state)["mpsguard_client_info"].items() >= (named | {"pod_uid": UID}).items()
    assert samples(state)["mpsguard_client_memory_bytes"].items() >= (named | {"UUID": "GPU-1"}).items()


def test_series_of_a_client_in_a_pod_without_a_name_have_its_uid() -> None:
    labels = samples(GuardState(clients=(CLIENT,), pod_uids={CLIENT.process: UID}))["mpsguard_client_info"]
    assert (labels["pod_uid"], labels["pod"], labels["namespace"], labels["container"]) == (UID, "", "", "")
