"""What the copying process tells the command: one JSON document on each line."""

import msgspec

from mpsguard.images.snapshot.errors import FailureKind


class Expected(msgspec.Struct, frozen=True, tag="expected"):
    """The snapshot begins."""

    allocations: int
    bytes: int


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """Bytes since the last word."""

    bytes: int


class Whole(msgspec.Struct, frozen=True, tag="whole"):
    """Everything is written, and on the disk."""

    allocations: int
    bytes: int
    skipped: int
    not_included: int
    """Counted kinds of memory that the snapshot does not have."""
    seconds: float


class SnapshotFailed(msgspec.Struct, frozen=True, tag="failed"):
    """There is no snapshot."""

    kind: FailureKind
    text: str


Message = Expected | Copied | Whole | SnapshotFailed


def encode(message: Message) -> bytes:
    """Return a line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of a line; raise msgspec.DecodeError."""
    message: Message = msgspec.json.decode(line, type=Message)
    return message
