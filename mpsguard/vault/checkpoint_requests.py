"""A page that a session's writer polls: requests for checkpoints, and what came of the last ones.

The page is a region of the session, named `REGION`, that the writer makes when it asks for checkpoints. The guard
writes a request into it and reads the outcome; the writer looks at one word of it whenever it publishes. Like every
region it belongs to its user: the guard reads and writes it by descriptor, never maps it, and believes nothing in it.

Layout: magic; the word of the newest request (its number, and above it the CRC-32 of the name); the word of the last
outcome; whether the newest request is one for a handover; the number of the publication that the receiver of a
handover has all of, and the same once it has gone on from there; then, each behind its length, the name of the request,
the outcome of the last checkpoint, and that of the last one that was requested. The two differ where the program takes
checkpoints by itself, too.
"""

import os
import struct
import sys
import zlib
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from mpsguard.decoding import decoded
from mpsguard.vault.errors import BadRequestError, LayoutMismatchError
from mpsguard.vault.region import RegionLayout, SessionRecord, check_name

REGION: Final = "mpsguard.checkpoint"
"""Name of the region in its session."""
SIZE: Final = 4096
_MAGIC: Final = 0x4D50_5347_4348_4B31
HEADER: Final = struct.pack("=Q", _MAGIC)
REQUEST_WORD: Final = 1
"""Index of the 8-byte word that changes with each request."""
HANDOVER_WORD: Final = 3
OFFER_WORD: Final = 4
MOVED_WORD: Final = 5
HELD: Final = "held"
"""State of an outcome: committed, and the program stands still until it is taken over."""
_REQUEST_AT: Final = 8
_NAME_AT: Final = 64
_OUTCOME_AT: Final = 512
_REQUESTED_AT: Final = 2048
_MOST_NAME: Final = 255
_MOST_OUTCOME: Final = _REQUESTED_AT - _OUTCOME_AT - 4
_MASK: Final = 0xFFFF_FFFF


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


def ask(fd: int, image: str, *, handover: bool = False) -> int:
    """Write a request into the page and return its number; raise OSError.

    ``handover``: the writer is to stand still behind the cut until another process takes over.
    """
    name = image.encode()
    assert 0 < len(name) <= _MOST_NAME
    os.pwrite(fd, struct.pack("=QQQ", int(handover), 0, 0), HANDOVER_WORD * 8)
    before = int.from_bytes(os.pread(fd, 8, _REQUEST_AT), sys.byteorder)
    number = (before & _MASK) + 1 & _MASK
    os.pwrite(fd, struct.pack("=I", len(name)) + name, _NAME_AT)
    # Last, so that a writer that sees the number finds the name. If another request comes between, the checksum tells.
    os.pwrite(fd, struct.pack("=Q", number | zlib.crc32(name) << 32), _REQUEST_AT)
    return number


def offer(fd: int, sequence: int) -> None:
    """Say that a receiver has all of the publication with that number; raise OSError."""
    os.pwrite(fd, struct.pack("=Q", sequence), OFFER_WORD * 8)


def tell_moved(fd: int, sequence: int) -> None:
    """Say that the receiver goes on from that publication; raise OSError."""
    os.pwrite(fd, struct.pack("=Q", sequence), MOVED_WORD * 8)


def has_moved(fd: int, sequence: int) -> bool:
    """Return whether the receiver has said so; raise OSError."""
    return os.pread(fd, 8, MOVED_WORD * 8) == struct.pack("=Q", sequence)


def requested(content: bytes | memoryview) -> str | None:
    """Return the name in the newest request of a page's content; None if it is not whole, or no image's name."""
    (word,) = struct.unpack_from("=Q", content, _REQUEST_AT)
    (length,) = struct.unpack_from("=I", content, _NAME_AT)
    if not 0 < length <= _MOST_NAME:
        return None
    name = bytes(content[_NAME_AT + 4 : _NAME_AT + 4 + length])
    if zlib.crc32(name) != word >> 32:
        return None
    try:
        text = name.decode()
        check_name("image", text)
    except (UnicodeDecodeError, BadRequestError):
        return None
    return text


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
