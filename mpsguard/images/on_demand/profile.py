"""The order in which a run first needed the pieces of an image; a file beside the image's manifest.

It is a hint from outside: what it says about an image that has been replaced, or about pieces that are not there, is
ignored.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import Manifest, encode
from mpsguard.images.store.pieces import digest_of
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.decoding import decoded

_ENDING: Final = ".order"
_FRAME_BYTES: Final = 256
"""Of a profile without pieces, and more."""
_PIECE_BYTES: Final = 32
"""Of a piece without its region's name, and more; the characters of that name take one byte each."""

Natural = Annotated[int, Meta(ge=0, lt=1 << 57)]


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pieces in the order of first use."""

    image: str
    """Digest of the manifest."""
    pieces: tuple[tuple[str, Natural], ...]
    """Region and index of the piece."""


_decoder: Final[msgspec.json.Decoder[Profile]] = msgspec.json.Decoder(Profile)


def profile_of(manifest: Manifest, pieces: tuple[tuple[str, int], ...]) -> Profile:
    """Return a profile of an image."""
    return Profile(digest_of(encode(manifest)), pieces)


def save_profile(store: ImageStore, name: str, profile: Profile) -> None:
    """Put a profile beside the manifest of an image; raise ImageError, also if the store is another user's."""
    store.put_beside(name, _ENDING, msgspec.json.encode(profile))


def load_profile(store: ImageStore, image: Image) -> Profile | None:
    """Return the profile of an image; None if there is none, or none of this very image."""
    data = store.read_beside(image.name, _ENDING, _most_bytes(image.manifest))
    if data is None:
        return None
    try:
        profile = decoded(_decoder.decode, data)
    except msgspec.DecodeError:
        return None
    return profile if profile.image == digest_of(encode(image.manifest)) else None


def _most_bytes(manifest: Manifest) -> int:
    """Return the size of the largest profile that an image can have, in which each piece is named once."""
    return _FRAME_BYTES + sum(len(region.pieces) * (len(region.name) + _PIECE_BYTES) for region in manifest.regions)


def reading_order(counts: Mapping[str, int], profile: Profile | None) -> Iterator[tuple[str, int]]:
    """Yield each piece once: those of the profile in its order, and then all others.

    Args:
        counts: pieces of each region, by its name.
        profile: of the image, or of anything else; None for none.
    """
    seen = set()
    for region, index in () if profile is None else profile.pieces:
        if index < counts.get(region, 0) and (region, index) not in seen:
            seen.add((region, index))
            yield region, index
    for region, count in counts.items():
        yield from ((region, index) for index in range(count) if (region, index) not in seen)
