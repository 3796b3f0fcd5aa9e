"""What travels between the vault and the porter of a user: a client's packet behind a header of a few bytes."""

import struct
from enum import IntFlag
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct("=HH")
HEADER_BYTES: Final = _HEADER.size


class Flag(IntFlag):
    """What the porter saw of a client's packet, or what the vault asks of the porter."""

    TRUNCATED = 1
    """The packet, or its descriptors, did not fit."""
    STRANGER = 2
    """Another process than the one that connected has sent it."""
    FOREIGN = 4
    """A descriptor was no memory; all descriptors of the packet were thrown away."""
    UNASKED = 8
    """Descriptors came that were not agreed upon; all of them were thrown away."""
    END = 16
    """The client has closed its connection. Without that, the porter has ended."""
    GROWS = 64
    """A descriptor of memory whose size cannot be fixed; all descriptors of the packet were thrown away."""
    EXPECT = 32
    """From the vault: take ``rights`` descriptors more from this client."""


class Frame(NamedTuple):
    """One packet, without its descriptors."""

    flags: Flag
    rights: int
    """Descriptors that came with the packet, or that may come."""
    data: bytes


def encode(frame: Frame) -> bytes:
    """The bytes of a frame."""
    return _HEADER.pack(frame.flags, frame.rights) + frame.data


def decode(data: bytes) -> Frame:
    """The frame in ``data``; struct.error if there is none."""
    flags, rights = _HEADER.unpack_from(data)
    return Frame(Flag(flags), rights, data[HEADER_BYTES:])
