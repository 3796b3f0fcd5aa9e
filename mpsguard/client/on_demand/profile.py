"""The order in which a run first needed the pieces of an image; a file beside the image's manifest.

It is a hint from outside: what it says about an image that has been replaced, or about pieces that are not there, is
ignored.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.decoding import decoded
from mpsguard.images.errors import os_errors
from mpsguard.images.image import Image
from mpsguard.images.image_files import file_name
from mpsguard.images.manifest import Manifest, encode
from mpsguard.images.pieces import digest_of
from mpsguard.images.store import ImageStore
from mpsguard.images.store_files import IMAGES
from mpsguard.linux.files import file_replacement

_SUFFIX: Final = ".order"
_MOST_BYTES: Final = 64 << 20

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
    """Put a profile beside the manifest of an image; raise ImageError."""
    with os_errors(f"profile of image {name}"):
        file_replacement.replace(_path(store, name), msgspec.json.encode(profile))


def load_profile(store: ImageStore, image: Image) -> Profile | None:
    """Return the profile of an image; None if there is none, or none of this very image."""
    try:
        with _path(store, image.name).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        profile = decoded(_decoder.decode, data)
    except (OSError, msgspec.DecodeError):
        return None
    return profile if profile.image == digest_of(encode(image.manifest)) else None


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


def _path(store: ImageStore, name: str) -> Path:
    return store.directory / IMAGES / (file_name(name) + _SUFFIX)
