"""Messages between the pool and the user's programs; JSON in SEQPACKET packets, with descriptors beside it.

One request at a time: its answer comes before the next one is read.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.images.pool.arena_slots import Run
from mpsguard.images.pool.schedule import Phase
from mpsguard.images.pool.tiers import Tier
from mpsguard.linux.decoding import decoded

MAX_PACKET: Final = 65536
MOST_SECONDS: Final = 600.0
MOST_PAYLOAD: Final = 32768
MOST_TIER_BYTES: Final = 1 << 48
"""Of a tier."""
LISTED: Final = 256
"""Images in an answer."""

Key = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Path = Annotated[str, Meta(pattern=r"^/[^\x00]*\Z", max_length=4096)]
Seconds = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]
Size = Annotated[int, Meta(ge=0, le=MOST_TIER_BYTES)]


class HoldImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hold"):
    """Hold an image in a tier until it is released, or the connection ends. Answer: `ImageHeld`, with descriptors."""

    tier: Tier
    store: Path
    """Directory of the image's store."""
    name: Annotated[str, Meta(max_length=128)]
    key: Key
    """Of the image that is meant; another one may have come in its place meanwhile."""
    within: Seconds


class StartImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="start"):
    """Have a worker start an image. Answer: `ImageStarted`, with a connection to it; the worker ends with that."""

    store: Path
    name: Annotated[str, Meta(max_length=128)]
    key: Key
    within: Seconds
    payload: Annotated[bytes, Meta(max_length=MOST_PAYLOAD)] = b""
    in_host: bool = True
    """Whether the worker gets it in the host tier; otherwise it holds what it needs by itself."""


class FillImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fill"):
    """Bring what `ImageHeld.to_fill` asked for: descriptors of GPU memory, exported by CUDA. Answer: `RequestDone`."""

    key: Key


class ReleaseImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="release"):
    """End one use of an image. Answer: `RequestDone`."""

    tier: Tier
    key: Key


class OpenArena(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="arena"):
    """Get the pinned tier's memory, to be mapped read-only. Answer: `ArenaOpened`, with its descriptor."""


class ListTiers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="list"):
    """List the tiers. Answer: `PoolListing`."""

    start: Annotated[int, Meta(ge=0)] = 0
    """Images to skip."""


class ImageHeld(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="held"):
    """The image is held."""

    runs: tuple[Run, ...] = ()
    """In the pinned tier: the arena's slots that have its pieces, in their order."""
    to_fill: bool = False
    """Whether the GPU tier does not have it yet: room is reserved, and the requester has to fill or release it."""


class ArenaOpened(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="arena_opened"):
    """The arena's descriptor comes along."""

    size: Size


class ImageStarted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="started"):
    """A worker serves the connection that comes along."""


class RequestDone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="done"):
    """The request is done."""


class RequestRefused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="refused"):
    """The request changed nothing."""

    reason: str


class ImageInTier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image in a tier."""

    key: Key
    tier: Tier
    size: Size
    uses: int
    whole: bool


class WorkerInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker."""

    pid: int
    phase: Phase


class PoolListing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="listing"):
    """What the tiers hold: of each, the least recently used image first."""

    images: tuple[ImageInTier, ...]
    """`LISTED` at most; further ones follow if there are so many."""
    budgets: dict[Tier, Size]
    workers: tuple[WorkerInfo, ...] = ()


Request = HoldImage | StartImage | FillImage | ReleaseImage | OpenArena | ListTiers
Answer = ImageHeld | ArenaOpened | ImageStarted | RequestDone | RequestRefused | PoolListing

encode: Final = msgspec.json.encode
_requests: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)
_answers: Final[msgspec.json.Decoder[Answer]] = msgspec.json.Decoder(Answer)


def decode_request(data: bytes) -> Request:
    """Decode a request; raise msgspec.DecodeError."""
    return decoded(_requests.decode, data)


def decode_answer(data: bytes) -> Answer:
    """Decode an answer; raise msgspec.DecodeError."""
    return decoded(_answers.decode, data)
