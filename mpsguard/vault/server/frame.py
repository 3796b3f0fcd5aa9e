"""The frames between the vault and a user's porter: a client's packet behind a short header."""

import struct
from enum import IntFlag
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct("=HH")
HEADER_BYTES: Final = _HEADER.size


class Flag(IntFlag):
    """What the porter found in a client's packet, or what the vault asks of the porter."""

    TRUNCATED = 1
    """The packet or its descriptors did not fit."""
    STRANGER = 2
    """Sent by another process than the one that connected."""
    FOREIGN = 4
    """A descriptor was not memory; all descriptors of the packet were discarded."""
    UNASKED = 8
    """The packet had unexpected descriptors; all of them were discarded."""
    END = 16
    """The client has closed its connection. If a connection ends without this flag, the porter has ended."""
    GROWS = 64
    """A memory descriptor is not sealed against growing; all descriptors of the packet were discarded."""
    EXPECT = 32
    """From the vault: accept ``rights`` more descriptors from this client."""


class Frame(NamedTuple):
    """One packet, without its descriptors."""

    flags: Flag
    rights: int
    """Number of descriptors that came with the packet, or that may come."""
    data: bytes


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    return _HEADER.pack(frame.flags, frame.rights) + frame.data


def decode(data: bytes) -> Frame:
    """Decode a frame; raise struct.error if ``data`` is too short."""
    flags, rights = _HEADER.unpack_from(data)
    return Frame(Flag(flags), rights, data[HEADER_BYTES:])
