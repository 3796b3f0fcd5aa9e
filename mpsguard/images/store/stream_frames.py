"""Messages of a stream that carries an image: msgpack, each behind its length; nothing is read beyond what may come."""

from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta

from mpsguard.images.store.errors import StreamError
from mpsguard.images.store.manifest import MOST_BYTES
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.linux.decoding import decoded
from mpsguard.linux.processes.procfs import printable
from mpsguard.vault.wire.region import Name

GREETING: Final = b"mpsguard image stream 1\n"
_LENGTH_BYTES: Final = 4
_BESIDES: Final = 4096
"""Bytes that a message may take besides the data in it."""
MOST_MANIFEST: Final = MOST_BYTES + _BESIDES
MOST_PIECE: Final = PIECE_SIZE + _BESIDES
MOST_WANTED: Final = MOST_BYTES // 32 + _BESIDES
_READ_AT_ONCE: Final = 1 << 20


class Offer(msgspec.Struct, frozen=True, tag="offer", forbid_unknown_fields=True):
    """First message of the sender."""

    name: Name
    manifest: bytes
    """As in its file."""


class Wanted(msgspec.Struct, frozen=True, tag="wanted", forbid_unknown_fields=True):
    """Answer of the receiver, where there is a way back."""

    bits: bytes
    """A bit for each piece in the order of `Manifest.pieces`, the lowest first: whether it is to be sent."""


class Content(msgspec.Struct, frozen=True, tag="piece", forbid_unknown_fields=True):
    """A piece; which one, its digest says."""

    data: bytes


class Complete(msgspec.Struct, frozen=True, tag="complete", forbid_unknown_fields=True):
    """Last message of the sender, and of the receiver when the image is on its disk."""


class Declined(msgspec.Struct, frozen=True, tag="declined", forbid_unknown_fields=True):
    """The receiver has no use for the image."""

    text: Annotated[str, Meta(max_length=1000)]


Frame = Offer | Wanted | Content | Complete | Declined

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Frame]] = msgspec.msgpack.Decoder(Frame)


class Readable(Protocol):
    """Where a stream is read from."""

    def read(self, size: int, /) -> bytes:
        """Return ``size`` bytes, or fewer at the end."""


class Writable(Protocol):
    """Where a stream is written to."""

    def write(self, data: bytes, /) -> object:
        """Write all of ``data``."""

    def flush(self) -> object:
        """Have the other side see it."""


def write_frame(stream: Writable, frame: Frame) -> None:
    """Write a message; OSError if the other side is gone."""
    data = _encoder.encode(frame)
    stream.write(len(data).to_bytes(_LENGTH_BYTES, "little"))
    stream.write(data)


def read_greeting(stream: Readable) -> None:
    """Read what each stream begins with.

    Raises:
        StreamError: it is something else.
    """
    if _read_exactly(stream, len(GREETING)) != GREETING:
        raise StreamError("what came is no stream of an image, or one of another version")


def read_frame(stream: Readable, most: int) -> Frame:
    """Read a message.

    Raises:
        StreamError: it is none, it is longer than ``most`` bytes, or the stream broke off.
    """
    length = int.from_bytes(_read_exactly(stream, _LENGTH_BYTES), "little")
    if length > most:
        raise StreamError(f"a message of {length} bytes came, where {most} is the most")
    try:
        return decoded(_decoder.decode, _read_exactly(stream, length))
    except msgspec.DecodeError as error:
        # It may name a field, with whatever the name has for a terminal.
        raise StreamError(f"what came is no message of this protocol: {printable(str(error))}") from None


def _read_exactly(stream: Readable, size: int) -> bytes:
    # Memory is taken for what has come, not for what was announced.
    parts = []
    while size:
        try:
            part = stream.read(min(size, _READ_AT_ONCE))
        except OSError as error:
            raise StreamError(f"the stream broke off: {error.strerror or error}") from None
        if not part:
            raise StreamError("the stream broke off")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
