"""The vault's messages: whatever is wrong with one is said with one exception."""

import msgspec
import pytest

from mpsguard.vault.wire import wire
from mpsguard.vault.wire.region import LeaseRole

HELLO = wire.encode(wire.Hello(1, wire.VERSION, "session", LeaseRole.READER, 7))


@pytest.mark.parametrize("word", [b"hello", b"session", b"token"])
def test_a_word_that_is_no_text(word: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_request(HELLO.replace(word, b"\xff" * len(word)))


def test_an_answer_that_is_no_text() -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_reply(wire.encode(wire.Failure(1, "code", "QQ")).replace(b"QQ", b"\xff\xfe"))
