"""Messages between the pool and the template of its workers; JSON in SEQPACKET packets."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.linux.decoding import decoded

Number = Annotated[int, Meta(ge=0)]


class ForkWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fork"):
    """Fork a worker. Its end of the channel to the pool comes along."""

    number: Number


class ReapWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="reap"):
    """Wait for a worker that has ended, or that the pool does not want: until then its pid is no other process's."""

    number: Number


class WorkerForked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="forked"):
    """A worker is there."""

    number: Number
    pid: Annotated[int, Meta(ge=0, le=1 << 22)]
    """0: it could not be forked. At most what Linux has (PID_MAX_LIMIT)."""


BEGIN: Final = b"begin"
"""First packet to a forked worker: the pool has its pidfd. Without it, nothing could end a worker that hangs."""

PACKET: Final = 1024
"""Bytes at most."""

encode: Final = msgspec.json.encode
_to_template: Final[msgspec.json.Decoder[ForkWorker | ReapWorker]] = msgspec.json.Decoder(ForkWorker | ReapWorker)
_from_template: Final = msgspec.json.Decoder(WorkerForked)


def decode_to_template(data: bytes) -> ForkWorker | ReapWorker:
    """Decode what the pool says; raise msgspec.DecodeError."""
    return decoded(_to_template.decode, data)


def decode_from_template(data: bytes) -> WorkerForked:
    """Decode what the template says; raise msgspec.DecodeError."""
    return decoded(_from_template.decode, data)
