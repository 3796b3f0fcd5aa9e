"""A simulated kubelet and a simulated NVSentinel, each with a real gRPC server on a unix socket."""

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty

from mpsguard.guard.kubernetes.wire.nvsentinel_pb2 import HealthEvent, HealthEvents
from mpsguard.guard.kubernetes.wire.pod_resources_pb2 import ListRequest, ListResponse


@contextmanager
def kubelet(socket: Path, answer: ListResponse) -> Iterator[None]:
    """Answer v1.PodResourcesLister/List."""
    handler = grpc.unary_unary_rpc_method_handler(
        lambda *_: answer,
        request_deserializer=ListRequest.FromString,
        response_serializer=ListResponse.SerializeToString,
    )
    with _serving(socket, "v1.PodResourcesLister", {"List": handler}):
        yield


class PlatformConnector:
    """What NVSentinel got."""

    def __init__(self) -> None:
        self.batches: list[HealthEvents] = []
        self.failing = False

    @property
    def events(self) -> list[HealthEvent]:
        return [event for batch in self.batches for event in batch.events]

    def take(self, batch: HealthEvents, context: Any) -> Empty:
        if self.failing:
            context.abort(grpc.StatusCode.UNAVAILABLE, "simulated failure")
        self.batches.append(batch)
        return Empty()


@contextmanager
def nvsentinel(socket: Path) -> Iterator[PlatformConnector]:
    """Answer datamodels.PlatformConnector/HealthEventOccurredV1."""
    connector = PlatformConnector()
    handler = grpc.unary_unary_rpc_method_handler(
        connector.take, request_deserializer=HealthEvents.FromString, response_serializer=Empty.SerializeToString
    )
    with _serving(socket, "datamodels.PlatformConnector", {"HealthEventOccurredV1": handler}):
        yield connector


@contextmanager
def _serving(socket: Path, service: str, handlers: dict[str, Any]) -> Iterator[None]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(grace=None).wait()
