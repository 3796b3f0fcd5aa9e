"""Pod names on clients and metrics, once a process has told the guard of the node's pods."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from mpsguard.guard.control_api.async_client import NoAnswerError, ask
from mpsguard.guard.control_api.messages.clients import PodsArguments, PodsNoted
from mpsguard.guard.pods import Pod, PodContainer
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded
from tests.integration.kubernetes.pod_cgroup import client_in, pod_cgroup

POD = Pod(
    "7c3e90d2-1111-4222-8333-444455556666", "team-a", "train-0", (PodContainer("c" * 64, "worker", ("GPU-0a1b",)),)
)


def tell(guarded: Guarded, arguments: msgspec.Struct) -> PodsNoted:
    return asyncio.run(ask(str(guarded.run_directory), "pods", arguments, PodsNoted, 5.0))


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running


def test_a_client_in_a_pod_has_its_name_in_the_list_and_in_its_series(guarded: Guarded) -> None:
    with pod_cgroup(POD, POD.containers[0]) as cgroup:
        client = client_in(cgroup, guarded)
        client.expect("started")
        wait_for("the client", guarded.clients)
        assert guarded.asked("clients")["pods"] == [None]
        assert guarded.metric("mpsguard_client_info", pod="", pod_uid=POD.uid) == 1

        assert tell(guarded, PodsArguments((POD,))).count == 1
        (pod,) = guarded.json("clients")["pods"]
        assert (pod["namespace"], pod["name"], pod["container"]) == ("team-a", "train-0", "worker")
        assert "team-a/train-0" in guarded.ctl("clients").stdout
        assert guarded.metric("mpsguard_client_info", namespace="team-a", pod="train-0", container="worker") == 1
        client.close()


class Loose(msgspec.Struct):
    pods: list[dict[str, str]]


def test_names_that_kubernetes_does_not_allow_are_refused(guarded: Guarded) -> None:
    bad = {"uid": POD.uid, "namespace": 'x"} 1', "name": "a"}
    with pytest.raises(NoAnswerError, match="namespace"):
        tell(guarded, Loose([bad]))
