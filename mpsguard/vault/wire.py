"""The vault's messages: msgpack, one in a SEQPACKET packet, shared by the vault and its clients.

The client speaks first, with `Hello`. Every request has an ``id`` and gets one answer with the same; a `Notice` has
none. Descriptors travel in packets of at most 253. A region is made in two steps: `Create` says what will come and is
answered by `Proceed`, then the descriptors follow in `Chunks`, and the answer to the last of them is `Done`. A region
is opened in one: `Opened` is followed by `MoreChunks` until all descriptors are there.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.decoding import decoded
from mpsguard.vault.region import Grant, Layout, Name, Region, Role, Uid

VERSION: Final = 1
MAX_PACKET: Final = 65536
"""Bytes of one message."""
NAMES_AT_ONCE: Final = 256

Token = Annotated[int, Meta(ge=1, lt=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t"):
    pass


class Hello(_Message, frozen=True, tag="hello"):
    """Attach to a session. A writer makes it if it is not there; then ``capacity``, ``keep`` and ``grants`` count."""

    id: int
    v: int
    session: Name
    role: Role
    token: Token
    """The client's own random number for the lease, by which it comes back to it when the connection breaks."""
    owner: Uid | None = None
    """Whose session; None: the asker's own."""
    capacity: Annotated[int, Meta(ge=1)] = 65536
    keep: Seconds | None = None
    grants: Annotated[tuple[Grant, ...], Meta(max_length=64)] = ()
    again: bool = False
    """Come back to the lease of that token. Without it, the lease is made if it is not there."""


class Create(_Message, frozen=True, tag="create"):
    """Announce a region."""

    id: int
    name: Name
    layout: Layout
    metadata: bytes = b""


class Chunks(_Message, frozen=True, tag="chunks"):
    """The next descriptors of a region, in order: as many as ``count`` says."""

    id: int
    count: Annotated[int, Meta(ge=1, le=253)]


class Seal(_Message, frozen=True, tag="seal"):
    """Declare chunks final; None: all of them."""

    id: int
    name: Name
    chunks: Annotated[tuple[int, ...], Meta(max_length=4096)] | None = None


class SetMetadata(_Message, frozen=True, tag="metadata"):
    """Replace a region's metadata, if they still are at ``expected_version``."""

    id: int
    name: Name
    metadata: bytes
    expected_version: int | None = None


class Open(_Message, frozen=True, tag="open"):
    """Ask for a region's descriptors; ``expected`` may leave out its va and gpu, and its sizes by an empty tuple."""

    id: int
    name: Name
    expected: Layout | None = None


class Describe(_Message, frozen=True, tag="describe"):
    """Ask for a region without its descriptors."""

    id: int
    name: Name


class Close(_Message, frozen=True, tag="close"):
    """A region is not mapped here any more."""

    id: int
    name: Name


class Release(_Message, frozen=True, tag="release"):
    """Take a region out of the vault; None: the session with all its regions."""

    id: int
    name: Name | None


class Names(_Message, frozen=True, tag="names"):
    """Ask for the regions' names behind ``after``, in order, `NAMES_AT_ONCE` at a time."""

    id: int
    after: str = ""


class Acquire(_Message, frozen=True, tag="acquire"):
    """Become the writer, if there is none."""

    id: int


class Leave(_Message, frozen=True, tag="leave"):
    """Give the lease back. The end of the connection does the same, unless it is the vault that ended."""

    id: int


class Ready(_Message, frozen=True, tag="ready"):
    """A standby could go on at once. It is told by `Granted` when it is to."""

    id: int


class GetRecord(_Message, frozen=True, tag="record"):
    """Ask for the record of the forward state of the generation that is now."""

    id: int


Request = (
    Hello
    | Create
    | Chunks
    | Seal
    | SetMetadata
    | Open
    | Describe
    | Close
    | Release
    | Names
    | Acquire
    | Leave
    | GetRecord
    | Ready
)


class Welcome(_Message, frozen=True, tag="welcome"):
    """Attached, promoted, or the record as asked for; with one descriptor, that of the record."""

    id: int
    token: int
    role: Role
    generation: int
    capacity: int


class Proceed(_Message, frozen=True, tag="proceed"):
    """Send the descriptors."""

    id: int


class Done(_Message, frozen=True, tag="done"):
    """It is done; ``region`` is what it is now, where one was changed or asked for."""

    id: int
    region: Region | None = None


class Opened(_Message, frozen=True, tag="opened"):
    """A region, with its first descriptors."""

    id: int
    region: Region
    generation: int
    """Of the session, now."""


class MoreChunks(_Message, frozen=True, tag="more"):
    """The next descriptors of a region that is being opened."""

    id: int


class NameList(_Message, frozen=True, tag="list"):
    """Names in order; ``more`` if there are others behind the last."""

    id: int
    names: tuple[str, ...]
    more: bool


class Failure(_Message, frozen=True, tag="failure"):
    """Nothing was done. ``code`` is one of `mpsguard.vault.errors.Code`."""

    id: int
    code: str
    message: str


class Fenced(_Message, frozen=True, tag="fenced"):
    """A notice: this lease is the writer's no more."""

    generation: int


class Granted(_Message, frozen=True, tag="granted"):
    """A notice: this lease is the writer's now; with one descriptor, that of the record to publish in."""

    generation: int


class Released(_Message, frozen=True, tag="released"):
    """A notice: a region was taken out by command, although it is mapped here (None: the whole session)."""

    name: str | None


Answer = Welcome | Proceed | Done | Opened | MoreChunks | NameList | Failure
Notice = Fenced | Granted | Released

_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_replies: Final[msgspec.msgpack.Decoder[Answer | Notice]] = msgspec.msgpack.Decoder(Answer | Notice)


def encode(message: Request | Answer | Notice) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def decode_request(data: bytes) -> Request:
    """What a client said; msgspec.DecodeError if it is nothing known."""
    return decoded(_requests.decode, data)


def decode_reply(data: bytes) -> Answer | Notice:
    """What the vault said; msgspec.DecodeError if it is nothing known."""
    return decoded(_replies.decode, data)
