"""The vault's messages: msgpack, one message in each SEQPACKET packet, shared by the vault and its clients.

The client speaks first, with `Hello`. Every request has an ``id`` and gets one answer with the same ``id``; a `Notice`
has none. Descriptors travel in packets of at most 253. A region is created in two steps: `Create` announces it and is
answered by `Proceed`, then the descriptors follow in `Chunks`, and the answer to the last of them is `Done`. A region
is opened in one step: `Opened` is followed by `MoreChunks` until all descriptors have been sent.

Version 2: with each state buffer comes the session's page (`session_page`), from which a client learns that its
generation is over; in version 1 the vault wrote that into the state buffer.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.linux.decoding import decoded
from mpsguard.vault.wire.region import Grant, LeaseRole, Name, RegionLayout, RegionRecord, Uid

VERSION: Final = 2
MAX_PACKET: Final = 65536
"""Maximum size of one message in bytes."""
NAMES_AT_ONCE: Final = 256

Token = Annotated[int, Meta(ge=1, lt=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t"):
    pass


class Hello(_Message, frozen=True, tag="hello"):
    """Attach to a session. A writer creates a missing session with ``capacity``, ``keep`` and ``grants``."""

    id: int
    v: int
    session: Name
    role: LeaseRole
    token: Token
    """Random number chosen by the client that identifies its lease after a reconnection."""
    owner: Uid | None = None
    """Owner of the session; None: the client's own uid."""
    capacity: Annotated[int, Meta(ge=1)] = 65536
    keep: Seconds | None = None
    grants: Annotated[tuple[Grant, ...], Meta(max_length=64)] = ()
    again: bool = False
    """Reclaim the lease with that token. If False, the lease is created if it does not exist."""


class Create(_Message, frozen=True, tag="create"):
    """Announce a region."""

    id: int
    name: Name
    layout: RegionLayout
    metadata: bytes = b""


class Chunks(_Message, frozen=True, tag="chunks"):
    """Transfer the next ``count`` descriptors of a region, in order."""

    id: int
    count: Annotated[int, Meta(ge=1, le=253)]


class Seal(_Message, frozen=True, tag="seal"):
    """Declare chunks final; None: all of them."""

    id: int
    name: Name
    chunks: Annotated[tuple[int, ...], Meta(max_length=4096)] | None = None


class SetMetadata(_Message, frozen=True, tag="metadata"):
    """Replace a region's metadata if its version is ``expected_version``."""

    id: int
    name: Name
    metadata: bytes
    expected_version: int | None = None


class Open(_Message, frozen=True, tag="open"):
    """Request a region's descriptors. In ``expected``, ``va`` and ``gpu`` may be None and ``sizes`` empty (any)."""

    id: int
    name: Name
    expected: RegionLayout | None = None


class Describe(_Message, frozen=True, tag="describe"):
    """Request a region without its descriptors."""

    id: int
    name: Name


class Close(_Message, frozen=True, tag="close"):
    """Report that the client has unmapped a region."""

    id: int
    name: Name


class Release(_Message, frozen=True, tag="release"):
    """Remove a region from the vault; None: the session with all its regions."""

    id: int
    name: Name | None


class Names(_Message, frozen=True, tag="names"):
    """Request up to `NAMES_AT_ONCE` region names that sort after ``after``."""

    id: int
    after: str = ""


class Acquire(_Message, frozen=True, tag="acquire"):
    """Become the writer, if there is none."""

    id: int


class Leave(_Message, frozen=True, tag="leave"):
    """Give the lease back. The end of the connection does the same, unless the vault ended it."""

    id: int


class Ready(_Message, frozen=True, tag="ready"):
    """Report that a standby could take over at once. `Granted` tells it when it is promoted."""

    id: int


class GetStateBuffer(_Message, frozen=True, tag="record"):
    """Request the state buffer of the current generation."""

    id: int


class RequestCheckpoint(_Message, frozen=True, tag="checkpoint"):
    """Ask the session's writer for a checkpoint. ``handover``: it is to stand still behind the cut."""

    id: int
    image: Name
    handover: bool = False


class HasWriter(_Message, frozen=True, tag="has_writer"):
    """Ask whether the session has a writer at this moment."""

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
    | GetStateBuffer
    | Ready
    | RequestCheckpoint
    | HasWriter
)


class Welcome(_Message, frozen=True, tag="welcome"):
    """Answer after attaching, after a promotion, and to `GetStateBuffer`; carries the state buffer and the page."""

    id: int
    token: int
    role: LeaseRole
    generation: int
    capacity: int


class Proceed(_Message, frozen=True, tag="proceed"):
    """Tell the client to send the descriptors."""

    id: int


class Done(_Message, frozen=True, tag="done"):
    """Report success; ``region`` is its new state, if the request changed or described one."""

    id: int
    region: RegionRecord | None = None


class Opened(_Message, frozen=True, tag="opened"):
    """A region, with its first descriptors."""

    id: int
    region: RegionRecord
    generation: int
    """Current generation of the session."""


class MoreChunks(_Message, frozen=True, tag="more"):
    """The next descriptors of a region that is being opened."""

    id: int


class NameList(_Message, frozen=True, tag="list"):
    """Names in order; ``more`` if others follow the last one."""

    id: int
    names: tuple[str, ...]
    more: bool


class WriterPresence(_Message, frozen=True, tag="writer_presence"):
    """Answer to `HasWriter`."""

    id: int
    present: bool


class Failure(_Message, frozen=True, tag="failure"):
    """Report that the request was refused without effect. ``code`` is one of `mpsguard.vault.wire.errors.Code`."""

    id: int
    code: str
    message: str


class Fenced(_Message, frozen=True, tag="fenced"):
    """Notice: this lease is no longer the writer's."""

    generation: int


class Granted(_Message, frozen=True, tag="granted"):
    """Notice: this lease is the writer's now. Carries the state buffer to publish in, and the page."""

    generation: int


class Released(_Message, frozen=True, tag="released"):
    """Notice: a region that this client maps was released by command (None: the whole session)."""

    name: str | None


Answer = Welcome | Proceed | Done | Opened | MoreChunks | NameList | WriterPresence | Failure
Notice = Fenced | Granted | Released

_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_replies: Final[msgspec.msgpack.Decoder[Answer | Notice]] = msgspec.msgpack.Decoder(Answer | Notice)


def encode(message: Request | Answer | Notice) -> bytes:
    """Return the encoded message."""
    return _encoder.encode(message)


def decode_request(data: bytes) -> Request:
    """Decode a client's request; raise msgspec.DecodeError if it is unknown or invalid."""
    return decoded(_requests.decode, data)


def decode_reply(data: bytes) -> Answer | Notice:
    """Decode an answer or notice of the vault; raise msgspec.DecodeError if it is unknown or invalid."""
    return decoded(_replies.decode, data)
