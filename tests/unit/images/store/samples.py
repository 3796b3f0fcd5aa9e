"""Small images with known bytes."""

from __future__ import annotations

import random
from collections.abc import Mapping

from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import Manifest, RegionImage
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.images.store.store import ImageStore
from mpsguard.images.store.writer import ImageWriter


def some_bytes(seed: object, size: int) -> bytes:
    return random.Random(str(seed)).randbytes(size)


def put_region(draft: ImageWriter, name: str, data: bytes) -> RegionImage:
    view = memoryview(data)
    pieces = tuple(draft.put(view[at : at + PIECE_SIZE]) for at in range(0, len(data), PIECE_SIZE))
    return RegionImage(name, (len(data),), pieces)


def commit(store: ImageStore, name: str, regions: Mapping[str, bytes], state: bytes = b"") -> Manifest:
    with store.begin(name) as draft:
        images = tuple(put_region(draft, region, data) for region, data in regions.items())
        manifest = Manifest.made_now("session", images, forward_state=state)
        draft.commit(manifest)
    return manifest


def read_region(image: Image, region: RegionImage) -> bytes:
    data = bytearray(region.size)
    view = memoryview(data)
    for index, digest in enumerate(region.pieces):
        image.read_into(digest, view[index * PIECE_SIZE : (index + 1) * PIECE_SIZE])
    return bytes(data)


def content(store: ImageStore, name: str) -> dict[str, bytes]:
    """All regions of an image, verified."""
    with store.open(name) as image:
        assert list(image.verify()) == []
        return {region.name: read_region(image, region) for region in image.manifest.regions}
