"""The words of the MPS handshake, protocol v2, as pure functions on bytes.

Read off drivers 535.309.01 and 580.159.04 (system calls of the control daemon, of a client and of the command line;
docs/reference/handshake.md). The daemon speaks first; every word ends in NUL:

    daemon  OUT?HELL
    peer    OUT?CRED  with SCM_CREDENTIALS, then int32: what the peer is
    client:   daemon OUT?CUFD with SCM_RIGHTS (a socket to the server); client int32 0; both close.
              The daemon waits for that int32 in its only thread.
    command:  peer (int64 length, line with newline and NUL)*, int64 0;
              daemon (int32 0, text)* a message for each line, then (int32 1, int32 exit status)
              One command line at a time: while one is connected, the daemon drops every other (535, 550, 580).

``?`` is B in both drivers; it is taken over from the lane's own greeting, so another letter would do as well.
"""

import re
import struct
from enum import IntEnum
from typing import Final

_GREETING: Final = re.compile(rb"OUT[A-Z]?HELL\x00")
_INT32: Final = struct.Struct("<i")
_INT64: Final = struct.Struct("<q")

WORD_LIMIT: Final = 64
"""Bytes accepted for a word of the handshake; the longest known has 9."""

PACKET_LIMIT: Final = 64 * 1024
"""Bytes accepted for any packet."""

COMMAND_LIMIT: Final = 4096
"""Bytes of a command's text message, with newline and NUL. The vendor's command line sends no more, and its control
daemon ends at 4200, from any user (535.261.03, 550.163.01)."""

VERSION_COMMAND: Final = "get_mpsguard_version"
"""A command that a guard answers itself, with its version, and with `QUITS` if it was told to quit; the vendor's daemon
does not know it."""
QUITS: Final = "quits"

REPETITION_COMMAND: Final = "get_mpsguard_repetition"
"""A command that a guard answers itself in the directory of second drivers: where the process that asks is to do its
work in flight again (`mpsguard.guard.broker.second_drivers`)."""

SECOND_LANE_COMMAND: Final = "get_mpsguard_second_lane"
"""Another such command: whether the process that asks may make its next driver ready, ahead of a fault."""


class ProtocolError(Exception):
    """A peer said what protocol v2 does not know."""


class PeerKind(IntEnum):
    """What a peer says it is, after its credentials."""

    SERVER = 1
    CLIENT = 2
    DEBUGGEE = 3
    UI = 4


def check_greeting(word: bytes) -> bytes:
    """The greeting itself if it is one of protocol v2; ProtocolError otherwise."""
    if not _GREETING.fullmatch(word):
        raise ProtocolError(f"greeting {word[:WORD_LIMIT]!r} is none of MPS protocol v2")
    return word


def credentials_word(greeting: bytes) -> bytes:
    """What a peer answers to ``greeting``."""
    return greeting[:-5] + b"CRED\0"


def peer_kind(data: bytes) -> PeerKind:
    """Decode the int32 that says what the peer is; ProtocolError if it is no known kind."""
    if len(data) != _INT32.size:
        raise ProtocolError(f"{len(data)} bytes where the 4 of a connection type belong")
    number = _INT32.unpack(data)[0]
    try:
        return PeerKind(number)
    except ValueError:
        raise ProtocolError(f"unknown connection type {number}") from None


def encode_kind(kind: PeerKind) -> bytes:
    """The int32 that says what a peer is."""
    return _INT32.pack(kind)


def encode_command(line: str) -> tuple[bytes, bytes]:
    """A command line as its length message and its text message; ProtocolError if no daemon can take it."""
    text = line.encode(errors="surrogateescape") + b"\n\0"
    # One that has filled a peer's buffer came without a newline.
    if len(text) > COMMAND_LIMIT + 1:
        raise ProtocolError(f"a command of {len(text)} bytes, at most {COMMAND_LIMIT} are possible")
    return _INT64.pack(len(text)), text


def command_length(data: bytes) -> int:
    """The length of the command that follows, 0 for the end of commands; ProtocolError if it is none."""
    if len(data) != _INT64.size:
        raise ProtocolError(f"{len(data)} bytes where the 8 of a command's length belong")
    length = int(_INT64.unpack(data)[0])
    if not 0 <= length <= COMMAND_LIMIT:
        raise ProtocolError(f"a command of {length} bytes, at most {COMMAND_LIMIT} are possible")
    return length


ACKNOWLEDGEMENT: Final = _INT32.pack(0)
"""A client's last word to the control daemon: it has its socket."""

END_OF_COMMANDS: Final = _INT64.pack(0)


def decode_command(text: bytes) -> str:
    """The command line in a text message; `encode_command` brings undecodable bytes back as they were."""
    return text.rstrip(b"\0").decode(errors="surrogateescape").rstrip("\n")


def decode_reply(data: bytes) -> str | int:
    """One message of a reply: a line of text, or at the end the exit status."""
    if len(data) < _INT32.size:
        raise ProtocolError(f"reply of {len(data)} bytes")
    tag = _INT32.unpack_from(data)[0]
    if tag == 0:
        return data[_INT32.size :].rstrip(b"\0").decode(errors="surrogateescape")
    if tag == 1 and len(data) == 2 * _INT32.size:
        return int(_INT32.unpack_from(data, _INT32.size)[0])
    raise ProtocolError(f"reply of unknown kind {tag}")


def encode_reply(said: str | int) -> bytes:
    """A line of text, or the exit status, as a message of a reply."""
    if isinstance(said, int):
        return _INT32.pack(1) + _INT32.pack(said)
    return _INT32.pack(0) + said.encode(errors="surrogateescape")
