"""Messages between the pool and its workers; JSON in SEQPACKET packets, with descriptors beside it."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.images.pool.messages import MAX_PACKET, Key, Path
from mpsguard.linux.decoding import decoded


class WorkerAssignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="assignment"):
    """Start an image. A connection to the program comes along, and its memory, in this order."""

    store: Path
    name: str
    key: Key
    payload: bytes


class WorkerPrepared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="prepared"):
    """The worker waits for an assignment."""


class WorkerStarted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="started"):
    """The image is there; the worker serves the connection."""


class WorkerFailed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="failed"):
    """The worker cannot start the image; it ends."""

    reason: Annotated[str, Meta(max_length=4096)]


FromWorker = WorkerPrepared | WorkerStarted | WorkerFailed

PACKET: Final = 2 * MAX_PACKET
"""Bytes at most: a payload takes up a third more in JSON."""

encode: Final = msgspec.json.encode
_assignments: Final = msgspec.json.Decoder(WorkerAssignment)
_from_worker: Final[msgspec.json.Decoder[FromWorker]] = msgspec.json.Decoder(FromWorker)


def decode_assignment(data: bytes) -> WorkerAssignment:
    """Decode an assignment; raise msgspec.DecodeError."""
    return decoded(_assignments.decode, data)


def decode_from_worker(data: bytes) -> FromWorker:
    """Decode what a worker says; raise msgspec.DecodeError."""
    return decoded(_from_worker.decode, data)
