"""What a session's processes tell of its checkpoints: what came of the last ones, and how far a handover is.

It stands in a region of the session, named `REGION`, that the writer makes when it is ready to take checkpoints. Like
every region it belongs to its user: the guard reads it by descriptor, never writes or maps it, and believes nothing in
it. That a checkpoint is wanted stands in the guard's own memory (`mpsguard.vault.wire.session_page`).

Layout: magic; three spare words; the number of the publication that the receiver of a handover has all of, and the same
once it has gone on from there; then, each behind its length, the outcome of the last checkpoint, and that of the last
one that was requested. The two differ where the program takes checkpoints by itself, too.
"""

import os
import struct
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from mpsguard.linux.decoding import decoded
from mpsguard.vault.wire.errors import LayoutMismatchError
from mpsguard.vault.wire.region import RegionLayout, SessionRecord

REGION: Final = "mpsguard.checkpoint"
"""Name of the region in its session."""
SIZE: Final = 4096
_MAGIC: Final = 0x4D50_5347_4348_4B31
HEADER: Final = struct.pack("=Q", _MAGIC)
OFFER_WORD: Final = 4
"""Index of an 8-byte word."""
MOVED_WORD: Final = 5
HELD: Final = "held"
"""State of an outcome: committed, and the program stands still until it is taken over."""
_OUTCOME_AT: Final = 512
_REQUESTED_AT: Final = 2048
_MOST_OUTCOME: Final = _REQUESTED_AT - _OUTCOME_AT - 4


class CheckpointOutcome(msgspec.Struct, frozen=True):
    """What came of a checkpoint, in the words of the writer, which may say anything within these limits."""

    image: Annotated[str, Meta(max_length=128)]
    state: Annotated[str, Meta(max_length=64)]
    """``under way``, ``committed``, or why it was refused."""
    at: Annotated[float, Meta(ge=0, le=4e9)]
    """UNIX time in seconds."""
    copied_bytes: Annotated[int, Meta(ge=0, lt=1 << 57)] = 0
    took: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Seconds from the cut to the commit."""


_outcomes: Final = msgspec.msgpack.Decoder(CheckpointOutcome)


def check_layout(layout: RegionLayout) -> None:
    """Raise LayoutMismatchError unless a region of that layout can be the page."""
    if layout.sizes != (SIZE,) or layout.gpu is not None:
        raise LayoutMismatchError(f"region {REGION!r} is not of the layout of requests: one memfd of {SIZE} bytes")


def page(session: SessionRecord, chunks: Mapping[int, tuple[int, ...]]) -> int | None:
    """Return the descriptor of a session's page, or None: its program takes no checkpoints."""
    region = session.regions.get(REGION)
    if region is None or region.layout.sizes != (SIZE,) or region.layout.gpu is not None:
        return None
    return chunks[region.id][0]


def begin_handover(fd: int) -> None:
    """Take back what a receiver has said before; raise OSError."""
    os.pwrite(fd, bytes(16), OFFER_WORD * 8)


def offer(fd: int, sequence: int) -> None:
    """Say that a receiver has all of the publication with that number; raise OSError."""
    os.pwrite(fd, struct.pack("=Q", sequence), OFFER_WORD * 8)


def tell_moved(fd: int, sequence: int) -> None:
    """Say that the receiver goes on from that publication; raise OSError."""
    os.pwrite(fd, struct.pack("=Q", sequence), MOVED_WORD * 8)


def has_moved(fd: int, sequence: int) -> bool:
    """Return whether the receiver has said so; raise OSError."""
    return os.pread(fd, 8, MOVED_WORD * 8) == struct.pack("=Q", sequence)


def tell(fd: int, outcome: CheckpointOutcome, *, requested: bool = False) -> None:
    """Write an outcome into the page; raise OSError. ``requested``: it is that of a request of this page."""
    data = msgspec.msgpack.encode(outcome)[:_MOST_OUTCOME]
    for at in (_REQUESTED_AT, _OUTCOME_AT) if requested else (_OUTCOME_AT,):
        os.pwrite(fd, struct.pack("=I", len(data)) + data, at)


class LastOutcomes(NamedTuple):
    """What a session's writer told; None where there is nothing that can be read."""

    last: CheckpointOutcome | None
    """Of its last checkpoint."""
    requested: CheckpointOutcome | None
    """Of the last one that another process had requested."""


def outcomes(session: SessionRecord, chunks: Mapping[int, tuple[int, ...]]) -> LastOutcomes:
    """Return what a session's writer told last."""
    fd = page(session, chunks)
    return LastOutcomes(None, None) if fd is None else read_outcomes(fd)


def read_outcomes(fd: int) -> LastOutcomes:
    """Return the last outcomes in a page."""
    try:
        content = os.pread(fd, SIZE, 0)
    except OSError:
        return LastOutcomes(None, None)
    return decoded_outcomes(content)


def decoded_outcomes(content: bytes) -> LastOutcomes:
    """Return the outcomes in a page's content."""
    if len(content) != SIZE:
        return LastOutcomes(None, None)
    return LastOutcomes(_decoded_at(content, _OUTCOME_AT), _decoded_at(content, _REQUESTED_AT))


def _decoded_at(content: bytes, at: int) -> CheckpointOutcome | None:
    (length,) = struct.unpack_from("=I", content, at)
    if not 0 < length <= _MOST_OUTCOME:
        return None
    try:
        return decoded(_outcomes.decode, content[at + 4 : at + 4 + length])
    except msgspec.DecodeError:
        return None
