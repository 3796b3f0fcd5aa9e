"""The kubelet's pod-resources API: which GPUs it gave to which container."""

import re
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from mpsguard.guard.kubernetes.wire.pod_resources_pb2 import ListRequest, ListResponse

METHOD: Final = "/v1.PodResourcesLister/List"
DEADLINE: Final = 10.0
"""Seconds for an answer."""
_MAX_ANSWER: Final = 16 << 20
_VENDOR: Final = "nvidia.com/"
_GPU: Final = re.compile(r"((?:GPU|MIG)-[0-9A-Za-z/-]{1,64})(?:::[0-9]+)?")
"""A GPU, or with sharing one of its replicas: the device plugin puts two colons and a number behind the UUID."""

Gpus = dict[tuple[str, str, str], tuple[str, ...]]
"""UUIDs of GPUs by namespace, pod and container."""


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
