"""What the writer and its copier say to each other: msgpack over a SOCK_SEQPACKET socket pair, with descriptors.

    Setup   ->                 the copier's first message; with the spare memory's descriptor, if there is any
            <- Ready           it may be asked for checkpoints
    Begin   ->                 a cut: with the descriptor of its table of pieces, and before it that of a large plan
            <- Ended           what came of it

There is one checkpoint at a time. One that is no longer wanted ends with the copier: by the end of the socket, or by
SIGKILL. A plan that does not fit into a packet is in a memfd of its own.
"""

import os
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.linux.decoding import decoded
from mpsguard.linux.descriptors import memfd
from mpsguard.vault.wire.region import Gpu, Name, RegionRecord, Uid

MAX_PACKET: Final = 16384
MOST_PLAN_BYTES: Final = 256 << 20
_MOST_WITHIN: Final = MAX_PACKET // 2
"""Bytes of a plan that goes with the message: the program stands still while a memfd is made."""
Natural = Annotated[int, Meta(ge=0, lt=1 << 57)]


class CheckpointRefusal(StrEnum):
    """Why a checkpoint was not committed."""

    TORN = "torn"
    """A piece was written after the cut without being announced, or while it was compared."""
    STORE = "store"
    """The image store refused: it is full, damaged, another user's."""
    STALE = "stale"
    """The writer was fenced off meanwhile."""
    MEMORY = "memory"
    """A region cannot be read: it was released, or the GPU has failed."""
    CANCELLED = "cancelled"
    """The writer waited too long, or is closing the session."""
    COPIER = "copier"
    """The copier has ended, or could not be started."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t"):
    pass


class Setup(_Message, frozen=True, tag="setup"):
    """How the copier is to work."""

    session: Name
    owner: Uid
    socket: str
    """The vault's."""
    store: str
    """Directory of the image store."""
    quota: Natural | None
    """Of the store, in bytes."""
    buffers: Natural
    """Bytes of host memory, pinned for a GPU's regions, in which pieces wait for the disk."""
    program: str
    """The writer's, which images name."""
    spare: Natural = 0
    """Bytes of the spare memory; its descriptor comes with this message."""
    spare_gpu: Gpu | None = None
    gpus: tuple[Gpu, ...] = ()
    """On which regions lie."""


class Begin(_Message, frozen=True, tag="begin"):
    """A cut was made."""

    serial: Natural
    plan: bytes = b""
    """A `CutPlan`; empty: it is in a memfd."""


class CopierReady(_Message, frozen=True, tag="ready"):
    """The copier has all that it needs."""


class Ended(_Message, frozen=True, tag="ended"):
    """What came of a checkpoint."""

    serial: Natural
    refusal: CheckpointRefusal | None
    """None: it is committed."""
    message: str = ""
    """Why it was refused."""
    pieces: Natural = 0
    copied: Natural = 0
    """Pieces that were copied; the store had the others."""
    written: Natural = 0
    """Bytes that the store had not."""
    unannounced: Natural = 0
    """Pieces that changed between the last cut and this one although no write to them was announced."""
    drained: float = 0.0
    """Seconds from the cut until no piece of the session's memory was needed any more."""
    took: float = 0.0
    """Seconds from the cut to the commit."""


class CutPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that the copier has to know of a cut, besides the table of pieces."""

    serial: Natural
    image: str
    writer_generation: Natural
    """Of the session at the cut: the writer's own."""
    generation: Natural
    """In which the forward state was published: the writer's own, or one before it."""
    sequence: Natural
    forward_state: bytes
    regions: tuple[RegionRecord, ...]
    """In the order in which their pieces are numbered."""
    pieces: Natural
    dirty: bytes
    """A byte for each piece: 1 if a write to it was announced since the last cut, or if there was none."""


_to_copier: Final[msgspec.msgpack.Decoder[Setup | Begin]] = msgspec.msgpack.Decoder(Setup | Begin)
_to_writer: Final[msgspec.msgpack.Decoder[CopierReady | Ended]] = msgspec.msgpack.Decoder(CopierReady | Ended)
_plans: Final = msgspec.msgpack.Decoder(CutPlan)


def encode(message: Setup | Begin | CopierReady | Ended) -> bytes:
    """Return the packet of a message."""
    return msgspec.msgpack.encode(message)


def decode_for_copier(data: bytes) -> Setup | Begin:
    """Decode a message of the writer; raise msgspec.DecodeError."""
    return decoded(_to_copier.decode, data)


def decode_for_writer(data: bytes) -> CopierReady | Ended:
    """Decode a message of the copier; raise msgspec.DecodeError."""
    return decoded(_to_writer.decode, data)


def begin(plan: CutPlan) -> tuple[Begin, tuple[int, ...]]:
    """Return the message of a cut, and the descriptor for a plan that it has no room for, owned by the caller.

    Raises:
        OSError: there is no memory for that.
    """
    data = msgspec.msgpack.encode(plan)
    if len(data) <= _MOST_WITHIN:
        return Begin(plan.serial, data), ()
    return Begin(plan.serial), (memfd.holding("mpsguard-plan", data),)


def plan_of(message: Begin, fds: tuple[int, ...]) -> CutPlan:
    """Return the plan of a cut; the descriptors, as they came, stay owned by the caller.

    Raises:
        msgspec.DecodeError: there is none, or it is another cut's.
        OSError: it cannot be read.
    """
    data = message.plan or _read_plan(fds[0])
    plan = decoded(_plans.decode, data)
    if plan.serial != message.serial:
        raise msgspec.DecodeError(f"plan {plan.serial} for checkpoint {message.serial}")
    return plan


def _read_plan(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    if size > MOST_PLAN_BYTES:
        raise msgspec.DecodeError(f"a plan of {size} bytes")
    parts, at = [], 0
    while at < size:
        part = os.pread(fd, size - at, at)
        if not part:
            raise msgspec.DecodeError("a plan that is cut off")
        parts.append(part)
        at += len(part)
    return b"".join(parts)
