"""Kubernetes pods of a node, and which of them a client is in. Pure data."""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from mpsguard.guard.model import Client
from mpsguard.linux.cgroup_origin import origin

MAX_PODS: Final = 1024
"""Pods of one node; the kubelet's own default is 110."""

_Uid = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")]
_Label = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")]
_Subdomain = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")]
_ContainerId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_GpuUuid = Annotated[str, msgspec.Meta(pattern=r"\A(GPU|MIG)-[0-9A-Za-z/-]{1,64}\Z")]


class PodContainer(msgspec.Struct, frozen=True):
    """One container of a pod."""

    id: _ContainerId
    name: _Label
    gpus: Annotated[tuple[_GpuUuid, ...], msgspec.Meta(max_length=64)] = ()
    """UUIDs of the GPUs that the kubelet gave it; empty if that is not known."""


class Pod(msgspec.Struct, frozen=True):
    """One pod, by the names that Kubernetes allows."""

    uid: _Uid
    namespace: _Label
    name: _Subdomain
    containers: Annotated[tuple[PodContainer, ...], msgspec.Meta(max_length=64)] = ()


class ClientPod(msgspec.Struct, frozen=True):
    """Where in Kubernetes a client runs."""

    uid: str
    namespace: str
    name: str
    container: str = ""
    """Name of its container; "" if that is not known."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that the kubelet gave the container."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodTable:
    """The pods of this node, by UID."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self._pods = {pod.uid: pod for pod in pods}

    def of(self, client: Client) -> ClientPod | None:
        """Return the pod of a client, or None if it is in none that is known.

        Its control group counts as far as no user can make one of that name (`mpsguard.linux.cgroup_origin`).
        """
        pod = self._pods.get(origin(client.cgroup).pod or "")
        if pod is None:
            return None
        container = next((each for each in pod.containers if each.id == client.container), None)
        if container is None:
            return ClientPod(pod.uid, pod.namespace, pod.name)
        return ClientPod(pod.uid, pod.namespace, pod.name, container.name, container.gpus)
