"""What a program has of its supervisor: its role, by the environment, and messages in SEQPACKET packets (msgpack).

Each process has its own channel, which identifies it. `Ready`, `Promoted` and `Drop` have no answer; the other requests
have an ``id`` and get one answer with the same ``id``. `Take` is answered by one or more `Given` messages of at most
253 descriptors each, the last with ``more`` False.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.linux.decoding import decoded

ROLE_VARIABLE: Final = "MPSGUARD_ROLE"
"""Environment variable with a `ProcessRole`; a process without it is the active one."""

IMAGE_VARIABLE: Final = "MPSGUARD_IMAGE"
"""Environment variable with the name of an image, from which a session is filled in which nothing was published yet."""
VARIABLE: Final = "MPSGUARD_SUPERVISOR"
"""Environment variable with the number of the channel's descriptor."""

MAX_PACKET: Final = 8192
"""Maximum size of one message in bytes."""

Tag = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Number that the program chose for a connection."""


class ProcessRole(StrEnum):
    """The role in which a process starts. Later changes are decided in `mpsguard.vault.supervisor.decision`."""

    ACTIVE = "active"
    STANDBY = "standby"


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t"):
    pass


class Ready(_Message, frozen=True, tag="ready"):
    """Report that this process serves, or is a standby that may be promoted from now on."""


class Promoted(_Message, frozen=True, tag="promoted"):
    """Report that this process was a standby, and writes the session now."""


class Keep(_Message, frozen=True, tag="keep"):
    """Keep a copy of the attached connection, so that the end of this process does not close it."""

    id: int
    tag: Tag


class Accept(_Message, frozen=True, tag="accept"):
    """Accept a connection from the attached listening socket, and keep it."""

    id: int
    tag: Tag


class Drop(_Message, frozen=True, tag="drop"):
    """Stop keeping a connection."""

    tag: Tag


class Take(_Message, frozen=True, tag="take"):
    """Request copies of all kept connections, once no other process of the program can write to them."""

    id: int


class Fence(_Message, frozen=True, tag="gate"):
    """Request an I/O fence: from now on this process uses kept connections only inside it."""

    id: int


Request = Ready | Promoted | Keep | Accept | Drop | Take | Fence


class Done(_Message, frozen=True, tag="done"):
    """Report success, with the descriptor of the accepted connection (none if none waits) or of the fence pass."""

    id: int


class Given(_Message, frozen=True, tag="given"):
    """Kept connections: tags and as many descriptors, in the same order; ``more`` if others follow."""

    id: int
    tags: Annotated[tuple[Tag, ...], Meta(max_length=253)]
    more: bool


class Refused(_Message, frozen=True, tag="refused"):
    """Report that the request was refused without effect."""

    id: int
    reason: str


Answer = Done | Given | Refused

_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_answers: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """Return the encoded message."""
    return _encoder.encode(message)


def decode_request(data: bytes) -> Request:
    """Decode a process' request; raise msgspec.DecodeError if it is unknown or invalid."""
    return decoded(_requests.decode, data)


def decode_answer(data: bytes) -> Answer:
    """Decode the supervisor's answer; raise msgspec.DecodeError if it is unknown or invalid."""
    return decoded(_answers.decode, data)
