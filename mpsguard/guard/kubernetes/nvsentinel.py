"""NVSentinel's platform connector: incidents as health events that cordon no node."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from google.protobuf import empty_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from mpsguard.guard.kubernetes.event_series import Series
from mpsguard.guard.kubernetes.notices import REASON, node_note, notable
from mpsguard.guard.kubernetes.sink import NotToldError, ToldIncident
from mpsguard.guard.kubernetes.wire.nvsentinel_pb2 import (
    NONE,
    STORE_ONLY,
    Entity,
    HealthEvent,
    HealthEvents,
)

METHOD: Final = "/datamodels.PlatformConnector/HealthEventOccurredV1"
DEADLINE: Final = 10.0
"""Seconds for an answer."""


def health_event(told: ToldIncident, node: str, gpus: Mapping[str, str]) -> HealthEvent:
    """Return an incident as a health event.

    It is not fatal, recommends nothing and asks to be stored only: NVSentinel cordons no node for it. The action
    counts, too: newer connectors derive from it whether an event is fatal.

    Args:
        told: The incident.
        node: The node's name.
        gpus: UUIDs of GPUs by PCI address.
    """
    record, cast = told.record, told.cast
    incident = record.incident
    at = Timestamp()
    at.FromMicroseconds(int((incident.began + record.wall_offset) * 1e6))
    metadata = {
        "incident": record.id,
        "fault_class": incident.fault_class.value,
        "confidence": incident.confidence.value,
        "victims": str(cast.hit),
    }
    if cast.culprit is not None:
        metadata |= {"namespace": cast.culprit.namespace, "pod": cast.culprit.name, "container": cast.culprit.container}
    return HealthEvent(
        version=1,
        agent="mpsguard",
        component_class="GPU",
        check_name=REASON,
        is_fatal=False,
        is_healthy=False,
        message=node_note(record, cast),
        recommended_action=NONE,
        error_code=[str(each) for each in incident.xids],
        entities_impacted=_entities(incident.gpu, gpus),
        metadata=metadata,
        generated_timestamp=at,
        node_name=node,
        processing_strategy=STORE_ONLY,
    )


class NvsentinelSink:
    """Sends incidents that hit a client to the platform connector of the node."""

    name = "nvsentinel"

    def __init__(self, socket: Path, node: str, gpus: Mapping[str, str]) -> None:
        """``gpus``: UUIDs by PCI address."""
        self._socket = socket
        self._node = node
        self._gpus = gpus

    async def tell(self, told: Sequence[ToldIncident], known: Mapping[str, Series]) -> dict[str, Series]:
        """See `Sink`."""
        events = [health_event(each, self._node, self._gpus) for each in told if notable(each.record, each.cast)]
        if events:
            await self._send(HealthEvents(version=1, events=events))
        return dict(known)

    async def _send(self, events: HealthEvents) -> None:
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._socket}") as channel:
                method = channel.unary_unary(
                    METHOD,
                    request_serializer=HealthEvents.SerializeToString,
                    response_deserializer=empty_pb2.Empty.FromString,
                )
                await method(events, timeout=DEADLINE)
        except grpc.aio.AioRpcError as error:
            raise NotToldError(f"{self._socket}: {error.code().name}: {error.details()}") from None


def _entities(gpu: str | None, gpus: Mapping[str, str]) -> list[Entity]:
    if gpu is None:
        return []
    found = [Entity(entity_type="PCI", entity_value=gpu)]
    if gpu in gpus:
        found.append(Entity(entity_type="GPU_UUID", entity_value=gpus[gpu]))
    return found
