"""The words of the handshake: what is known is understood, everything else is a ProtocolError and nothing worse."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.lanes import mps_protocol
from mpsguard.guard.lanes.mps_protocol import PeerKind, ProtocolError

GREETING = b"OUTBHELL\0"


def test_the_words_follow_the_greeting() -> None:
    assert mps_protocol.check_greeting(GREETING) == GREETING
    assert mps_protocol.credentials_word(GREETING) == b"OUTBCRED\0"
    assert mps_protocol.credentials_word(b"OUTHELL\0") == b"OUTCRED\0"


@pytest.mark.parametrize("word", [b"", b"OUTBHELL", b"OUTBHELL\0\0", b"outbhell\0", b"OUT12HELL\0", b"HELL\0"])
def test_another_greeting_is_another_protocol(word: bytes) -> None:
    with pytest.raises(ProtocolError):
        mps_protocol.check_greeting(word)


@pytest.mark.parametrize("kind", list(PeerKind))
def test_a_kind_survives_the_wire(kind: PeerKind) -> None:
    assert mps_protocol.peer_kind(mps_protocol.encode_kind(kind)) is kind


@given(st.binary(max_size=64))
def test_no_bytes_break_the_decoders(data: bytes) -> None:
    for decode in (mps_protocol.check_greeting, mps_protocol.peer_kind, mps_protocol.decode_reply):
        try:
            decode(data)
        except ProtocolError:
            continue
    mps_protocol.decode_command(data)


@given(st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), min_size=1))
def test_a_command_line_is_framed_as_the_vendors_front_end_does(line: str) -> None:
    length, text = mps_protocol.encode_command(line)
    assert struct.unpack("<q", length) == (len(text),)
    assert text.endswith(b"\n\0")
    assert mps_protocol.decode_command(text) == line


def test_replies_recorded_from_driver_580_are_understood() -> None:
    assert mps_protocol.decode_reply(b"\0\0\0\0Server not found") == "Server not found"
    assert mps_protocol.decode_reply(b"\0\0\0\0") == ""
    assert mps_protocol.decode_reply(b"\1\0\0\0\0\0\0\0") == 0
    assert mps_protocol.decode_reply(b"\1\0\0\0\2\0\0\0") == 2
