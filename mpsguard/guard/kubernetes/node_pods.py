"""The pods of this node, as the API server and the kubelet know them."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import msgspec
import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Pod as PodResource

from mpsguard.guard.kubernetes.wire.pod_resources_pb2 import ListRequest, ListResponse
from mpsguard.guard.model import Client
from mpsguard.guard.pods import MAX_PODS, Pod, PodContainer, PodTable
from mpsguard.linux.cgroup_origin import origin

METHOD: Final = "/v1.PodResourcesLister/List"
DEADLINE: Final = 10.0
"""Seconds for an answer."""
_MAX_ANSWER: Final = 16 << 20
_VENDOR: Final = "nvidia.com/"
_GPU: Final = re.compile(r"((?:GPU|MIG)-[0-9A-Za-z/-]{1,64})(?:::[0-9]+)?")
"""A GPU, or with sharing one of its replicas: the device plugin puts two colons and a number behind the UUID."""

Gpus = dict[tuple[str, str, str], tuple[str, ...]]
"""UUIDs of GPUs by namespace, pod and container."""
REFRESHED: Final = 60.0
"""Seconds after which the list is asked for again, if no client comes in a pod that is not on it."""
KEPT: Final = 600.0
"""Seconds that a pod is remembered after it was last listed: its incident is told a few seconds after its end."""
_CONTAINER_ID: Final = re.compile(r"[a-z0-9-]+://([0-9a-f]{64})")


class PodResourcesError(Exception):
    """The kubelet does not answer; one line says why."""


async def gpus_by_container(socket: Path) -> Gpus:
    """Ask the kubelet for the GPUs of each container.

    It has neither UIDs of pods nor ids of containers: which pod a process is in, it cannot say.

    Raises:
        PodResourcesError: there is no kubelet at that socket, or it does not answer in time.
    """
    options = [("grpc.max_receive_message_length", _MAX_ANSWER)]
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
            method = channel.unary_unary(
                METHOD, request_serializer=ListRequest.SerializeToString, response_deserializer=ListResponse.FromString
            )
            answer: ListResponse = await method(ListRequest(), timeout=DEADLINE)
    except grpc.RpcError as error:
        raise PodResourcesError(f"{socket}: {_said(error)}") from None
    return gpus_in(answer)


def gpus_in(answer: ListResponse) -> Gpus:
    """Return the GPUs of each container that has any."""
    found: Gpus = {}
    for pod in answer.pods:
        for container in pod.containers:
            devices = [
                match[1]
                for each in container.devices
                if each.resource_name.startswith(_VENDOR)
                for device in each.device_ids
                if (match := _GPU.fullmatch(device))
            ]
            if devices:
                found[pod.namespace, pod.name, container.name] = tuple(sorted(set(devices)))
    return found


def _said(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)


class NodePods:
    """Asks for the node's pods when a client comes in one that is not known, and every minute."""

    def __init__(
        self, api: AsyncClient, node: str, kubelet: Path | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``kubelet`` is the socket of its pod-resources API; None to do without the GPUs of containers."""
        self._api = api
        self._node = node
        self._kubelet = kubelet
        self._clock = clock
        self._seen: dict[str, tuple[Pod, float]] = {}
        self._strange: set[str] = set()
        """UIDs in control groups of clients that the API server does not know: those of other kubelets, or made up."""
        self._listed_at: float | None = None
        self._complaint = ""
        self._log = structlog.get_logger()

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods that are there, and those that ended a short time ago."""
        return tuple(pod for pod, _ in self._seen.values())

    @property
    def table(self) -> PodTable:
        """The same, to look clients up."""
        return PodTable(self.pods)

    async def refresh(self, clients: Iterable[Client]) -> None:
        """Ask for the list if it is old, or if a client is in a pod that was not on it.

        Raises:
            httpx2.HTTPError: the API server does not answer, or refuses.
        """
        now = self._clock()
        found = {uid for client in clients if (uid := origin(client.cgroup).pod) is not None}
        new = found - self._seen.keys() - self._strange
        if self._listed_at is not None and now - self._listed_at < REFRESHED and not new:
            return
        listed = [
            each async for each in self._api.list(PodResource, namespace="*", fields={"spec.nodeName": self._node})
        ]
        gpus = await self._gpus()
        pods = [pod for each in listed if (pod := pod_of(each, gpus)) is not None]
        self._seen = {uid: (pod, at) for uid, (pod, at) in self._seen.items() if now - at <= KEPT}
        self._seen.update((pod.uid, (pod, now)) for pod in pods)
        newest = sorted(self._seen.items(), key=lambda each: each[1][1])[-MAX_PODS:]
        self._seen = dict(newest)
        self._strange = found - self._seen.keys()
        self._listed_at = now

    async def _gpus(self) -> Gpus:
        if self._kubelet is None:
            return {}
        try:
            gpus = await gpus_by_container(self._kubelet)
        except PodResourcesError as error:
            if str(error) != self._complaint:
                self._log.warning("kubelet_not_asked", detail=str(error))
            self._complaint = str(error)
            return {}
        self._complaint = ""
        return gpus


def pod_of(resource: PodResource, gpus: Mapping[tuple[str, str, str], tuple[str, ...]]) -> Pod | None:
    """Return a pod as the guard takes it; None if its names are none that Kubernetes allows."""
    metadata, status = resource.metadata, resource.status
    if metadata is None or not (metadata.uid and metadata.namespace and metadata.name):
        return None
    states = (
        [
            each
            for group in (status.containerStatuses, status.initContainerStatuses, status.ephemeralContainerStatuses)
            for each in group or ()
        ]
        if status is not None
        else []
    )
    containers = tuple(
        PodContainer(match[1], each.name, gpus.get((metadata.namespace, metadata.name, each.name), ()))
        for each in states
        if (match := _CONTAINER_ID.fullmatch(each.containerID or ""))
    )
    try:
        pod = Pod(metadata.uid, metadata.namespace, metadata.name, containers)
        return msgspec.convert(msgspec.to_builtins(pod), Pod)
    except msgspec.ValidationError:
        return None
