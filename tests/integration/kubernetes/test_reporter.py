"""From a fault to Events, health events and pod names: the whole way, between simulated peers.

The guard and the control groups are real; API server, kubelet and NVSentinel are simulated.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import tenacity
from lightkube import AsyncClient, KubeConfig

from mpsguard.guard.kubernetes.event_writer import EventWriter
from mpsguard.guard.kubernetes.node_pods import NodePods
from mpsguard.guard.kubernetes.notices import NamedPods
from mpsguard.guard.kubernetes.nvsentinel import NvsentinelSink
from mpsguard.guard.kubernetes.reporter import SETTLES, Reporter
from mpsguard.guard.kubernetes.sink import NotToldError
from mpsguard.guard.kubernetes.wire.pod_resources_pb2 import ContainerDevices, DeviceList, ListResponse, PodDevices
from mpsguard.guard.pods import Pod, PodContainer, PodTable
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded
from tests.integration.kubernetes.api_server import ApiServer, api_server
from tests.integration.kubernetes.grpc_servers import PlatformConnector, kubelet, nvsentinel
from tests.integration.kubernetes.pod_cgroup import client_in, pod_cgroup
from tests.unit.guard.kubernetes.records import TABLE, record, told

NODE = "node-1"
UUID = "GPU-8f6a1c4e-1111-2222-3333-444455556666"
CULPRIT = Pod("0f5a1c4e-1111-4222-8333-444455556666", "team-a", "train-0", (PodContainer("c" * 64, "worker"),))
VICTIM = Pod("1f5a1c4e-1111-4222-8333-444455556666", "team-b", "serve-0", (PodContainer("d" * 64, "server"),))
DEVICES = ListResponse(
    pods=[
        PodDevices(
            name="train-0",
            namespace="team-a",
            containers=[
                ContainerDevices(
                    name="worker",
                    devices=[DeviceList(resource_name="nvidia.com/gpu.shared", device_ids=[f"{UUID}::2"])],
                )
            ],
        )
    ]
)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server([CULPRIT, VICTIM]) as running:
        yield running


def with_api(server: ApiServer, directory: Path, body: Callable[[AsyncClient], Awaitable[None]]) -> None:
    """Run ``body`` with a client of the API server that is configured as in a pod: by a file with a token."""

    async def run() -> None:
        api = AsyncClient(KubeConfig.from_file(server.kubeconfig(directory)), field_manager="mpsguard", trust_env=False)
        try:
            await body(api)
        finally:
            await api.close()

    asyncio.run(run())


def writer(api: AsyncClient, tried_for: float = 5.0) -> EventWriter:
    return EventWriter(api, NODE, NamedPods.ALL, tried_for=tried_for, wait=tenacity.wait_none())


class Node:
    """A guard, an API server, a kubelet and NVSentinel, and reporters one after the other."""

    def __init__(self, directory: Path, guarded: Guarded, server: ApiServer) -> None:
        self.directory = directory
        self.guarded = guarded
        self.server = server
        self.connector = PlatformConnector()

    def report(self, rounds: int = 1, ahead: float = SETTLES + 1) -> None:
        """Start a reporter of its own for some rounds, ``ahead`` of time in which incidents settle."""

        async def body(api: AsyncClient) -> None:
            reporter = Reporter(
                str(self.guarded.run_directory),
                NodePods(api, NODE, self.directory / "kubelet.sock"),
                [writer(api), NvsentinelSink(self.directory / "nvs.sock", NODE, {})],
                self.directory / "state",
                lambda: time.time() + ahead,
            )
            for _ in range(rounds):
                await reporter.round()

        with_api(self.server, self.directory, body)

    def fault(self) -> None:
        """Let a client of the culprit's pod crash with work in flight; it takes one of the victim's along."""
        with pod_cgroup(VICTIM, VICTIM.containers[0]) as theirs, pod_cgroup(CULPRIT, CULPRIT.containers[0]) as own:
            victim = client_in(theirs, self.guarded)
            victim.expect("started")
            culprit = client_in(own, self.guarded, "--fault", "kill", "--after", "0.3")
            culprit.expect("started")
            self.report(ahead=0)
            victim.expect("died")
            victim.wait()
            culprit.wait()
        # The first verdicts say less, or something else.
        wait_for("the last verdict", self._is_judged)

    def _is_judged(self) -> bool:
        return any(
            each["fault_class"] == "process" and each["culprit"] and each["victims"]
            for each in self.guarded.asked("incidents")["incidents"]
        )


@pytest.fixture
def node(tmp_path: Path, server: ApiServer) -> Iterator[Node]:
    with Guarded() as guarded, kubelet(tmp_path / "kubelet.sock", DEVICES):
        guarded.start()
        made = Node(tmp_path, guarded, server)
        with nvsentinel(tmp_path / "nvs.sock") as made.connector:
            yield made


def test_a_fault_is_told_to_pods_node_and_nvsentinel_once(node: Node) -> None:
    node.fault()
    listed = [each for each in node.server.requests if each.path == "/api/v1/pods"]
    assert [each.query["fieldSelector"] for each in listed] == [[f"spec.nodeName={NODE}"]]

    node.report(ahead=0)
    assert not node.server.writes(), "told before its verdict had settled"
    # Its pods' clients have gone, and this reporter never saw them: pods are found by the control groups on record.
    node.report(rounds=2)
    found = {each["regarding"]["name"]: each for each in node.server.events.values()}
    assert set(found) == {"train-0", "serve-0", NODE}
    assert {each["reason"] for each in found.values()} == {"MpsClientFault"}
    assert {each["reportingController"] for each in found.values()} == {"mpsguard"}
    assert found["serve-0"]["metadata"]["namespace"] == "team-b"
    assert found["serve-0"]["regarding"]["uid"] == VICTIM.uid
    assert found["serve-0"]["related"]["uid"] == CULPRIT.uid
    assert "Culprit: pod team-a/train-0 (container worker)." in found["serve-0"]["note"]
    assert found[NODE]["metadata"]["namespace"] == "default"
    assert found[NODE]["regarding"]["uid"] == NODE
    assert "class process" in found[NODE]["note"]
    assert [each.method for each in node.server.writes()] == ["POST"] * 3

    (event,) = node.connector.events
    assert (event.is_fatal, event.node_name, event.metadata["pod"]) == (False, NODE, "train-0")

    node.report()
    assert len(node.server.writes()) == 3, "told again after a restart"
    assert len(node.connector.events) == 1


def test_a_guard_that_started_again_is_told_the_pods_with_their_gpus(node: Node) -> None:
    with pod_cgroup(CULPRIT, CULPRIT.containers[0]) as cgroup:
        client = client_in(cgroup, node.guarded)
        client.expect("started")
        wait_for("the client", node.guarded.clients)
        node.report()
        node.guarded.kill()
        node.guarded.start()
        wait_for("the client", node.guarded.clients)
        assert node.guarded.asked("clients")["pods"] == [None]
        node.report()
        (pod,) = node.guarded.asked("clients")["pods"]
        assert (pod["name"], pod["container"], pod["gpus"]) == ("train-0", "worker", [UUID])
        client.close()


def test_what_nvsentinel_does_not_take_is_sent_again_and_events_are_not(node: Node) -> None:
    node.fault()
    node.connector.failing = True
    node.report(rounds=2)
    assert len(node.server.writes()) == 3
    assert not node.connector.events
    node.connector.failing = False
    node.report()
    assert len(node.server.writes()) == 3
    assert len(node.connector.events) == 1


# The writer alone, against the simulated API server.


def test_repetitions_raise_the_count_of_an_event(server: ApiServer, tmp_path: Path) -> None:
    async def body(api: AsyncClient) -> None:
        events = writer(api)
        began = time.time() - 1_700_000_000.0
        known = await events.tell([told(record(began=began))], {})
        again = [told(record(name=f"next-{number}", began=began + number)) for number in range(1, 21)]
        known = await events.tell(again, known)
        await events.tell([told(record(name="last", began=began + 30))], known)

    with_api(server, tmp_path, body)
    assert [each.method for each in server.writes()] == ["POST"] * 3 + ["PATCH"] * 6
    assert {each.content_type for each in server.writes()[3:]} == {"application/merge-patch+json"}
    assert [each["series"]["count"] for each in server.events.values()] == [22, 22, 22]


def test_the_same_told_twice_after_a_crash_changes_nothing(server: ApiServer, tmp_path: Path) -> None:
    async def body(api: AsyncClient) -> None:
        events = writer(api)
        began = time.time() - 1_700_000_000.0
        first = await events.tell([told(record(began=began))], {})
        assert await events.tell([told(record(began=began))], {}) == first
        more = [told(record(name="next", began=began + 1))]
        assert await events.tell(more, first) == await events.tell(more, first)

    with_api(server, tmp_path, body)
    assert len(server.events) == 3


def test_an_event_that_was_forgotten_is_written_anew(server: ApiServer, tmp_path: Path) -> None:
    began = time.time() - 1_700_000_000.0

    async def body(api: AsyncClient) -> None:
        known = await writer(api).tell([told(record(began=began))], {})
        server.events.clear()
        after = await writer(api).tell([told(record(name="next", began=began + 1))], known)
        assert {each.count for each in after.values()} == {1}

    with_api(server, tmp_path, body)
    assert len(server.events) == 3


def test_passing_failures_are_tried_again_and_lasting_ones_are_left(server: ApiServer, tmp_path: Path) -> None:
    async def body(api: AsyncClient) -> None:
        server.failing = [503, 429, 500]
        await writer(api).tell([told(record())], {})
        assert len(server.events) == 3
        server.failing = [403]
        await writer(api).tell([told(record(name="next"))], {})

    with_api(server, tmp_path, body)
    # One Event of the second round was refused, as in a namespace that is being deleted; the others were written.
    assert len(server.events) == 5


def test_a_server_that_does_not_come_back_is_a_failure_of_the_round(server: ApiServer, tmp_path: Path) -> None:
    async def body(api: AsyncClient) -> None:
        server.failing = [503] * 10_000
        with pytest.raises(NotToldError):
            await writer(api, tried_for=0.2).tell([told(record())], {})

    with_api(server, tmp_path, body)
    assert not server.events


def test_pods_are_asked_for_when_a_client_is_in_one_that_is_not_known_and_every_minute(
    server: ApiServer, tmp_path: Path
) -> None:
    now = [0.0]
    (known, *_) = record().clients

    async def body(api: AsyncClient) -> None:
        pods = NodePods(api, NODE, None, lambda: now[0])
        for _ in range(3):
            await pods.refresh([known])
        assert len(server.requests) == 1, "a pod that the API server does not know is asked for once"
        now[0] = 61.0
        await pods.refresh([])
        assert len(server.requests) == 2
        server.pods = []
        now[0] = 200.0
        await pods.refresh([])
        assert {each.uid for each in pods.pods} == {CULPRIT.uid, VICTIM.uid}, "its incident may still be told"
        now[0] = 1000.0
        await pods.refresh([])
        assert pods.pods == ()

    with_api(server, tmp_path, body)
    assert PodTable([]).of(known) is None
    assert TABLE.of(known) is not None
