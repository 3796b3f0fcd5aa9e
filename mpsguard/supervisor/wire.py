"""What a program and its supervisor say to each other over the desk: msgpack, one message in a SEQPACKET packet.

Each process has a desk of its own, so nobody says who he is. `Ready`, `Promoted` and `Drop` have no answer; the other
requests have an ``id`` and get one answer with the same. `Take` is answered by any number of `Given`, of at most 253
descriptors each, and the last one says so.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.decoding import decoded

VARIABLE: Final = "MPSGUARD_DESK"
"""Environment variable with the number of the descriptor that is the desk."""

MAX_PACKET: Final = 8192
"""Bytes of one message."""

Tag = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""The program's own name for a connection."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t"):
    pass


class Ready(_Message, frozen=True, tag="ready"):
    """This process serves, or is a standby that may be promoted from now on."""


class Promoted(_Message, frozen=True, tag="promoted"):
    """This process was a standby, and writes the session now."""


class Keep(_Message, frozen=True, tag="keep"):
    """Keep a connection, its descriptor is with this, so that the end of this process does not close it."""

    id: int
    tag: Tag


class Accept(_Message, frozen=True, tag="accept"):
    """Accept a connection from the listening socket whose descriptor is with this, and keep it."""

    id: int
    tag: Tag


class Drop(_Message, frozen=True, tag="drop"):
    """Do not keep a connection any longer."""

    tag: Tag


class Take(_Message, frozen=True, tag="take"):
    """Give copies of all connections that are kept, once no other process of the program can write to them."""

    id: int


class Fence(_Message, frozen=True, tag="gate"):
    """Give a gate: from now on this process uses kept connections only while it is inside."""

    id: int


Request = Ready | Promoted | Keep | Accept | Drop | Take | Fence


class Done(_Message, frozen=True, tag="done"):
    """It is kept; after `Accept` with one descriptor, that of the connection, or none if nobody waited to connect.

    After `Fence` with that of its passage (`mpsguard.linux.io_fence`).
    """

    id: int


class Given(_Message, frozen=True, tag="given"):
    """Connections by their tags, with as many descriptors, in this order; ``more`` if others follow."""

    id: int
    tags: Annotated[tuple[Tag, ...], Meta(max_length=253)]
    more: bool


class Refused(_Message, frozen=True, tag="refused"):
    """Nothing was done."""

    id: int
    reason: str


Answer = Done | Given | Refused

_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_answers: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def decode_request(data: bytes) -> Request:
    """What a process said; msgspec.DecodeError if it is nothing known."""
    return decoded(_requests.decode, data)


def decode_answer(data: bytes) -> Answer:
    """What the supervisor said; msgspec.DecodeError if it is nothing known."""
    return decoded(_answers.decode, data)
