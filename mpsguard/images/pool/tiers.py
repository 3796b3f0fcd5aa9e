"""Decides which images a tier of memory holds: pure functions of the tier's state and a request.

An image is unused if no process holds it. What has to make room are unused images, the least recently used first. A
refused request changes nothing.
"""

from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace


class Tier(StrEnum):
    """Kind of memory that holds a whole image; all images are on disk besides."""

    GPU = "gpu"
    PINNED = "pinned"
    """The arena's host memory, from which GPUs copy at the full rate of the bus."""
    HOST = "host"


class HeldImage(msgspec.Struct, frozen=True):
    """An image in a tier, or on its way there."""

    key: str
    """Digest of its manifest: an image that replaces another one under its name is another image."""
    size: int
    """Bytes it takes up in the tier."""
    uses: int = 1
    """Times that processes hold it."""
    whole: bool = False
    """Whether all of it is there."""

    @property
    def evictable(self) -> bool:
        """Whether it may make room for another one."""
        return self.whole and not self.uses


class TierState(msgspec.Struct, frozen=True):
    """The complete state of a tier."""

    budget: int
    """Bytes of all its images together, at most."""
    images: tuple[HeldImage, ...] = ()
    """The least recently used first: by when a use began or ended last."""
    most: int = 256
    """Images at most: each takes up descriptors of the pool."""

    @property
    def taken(self) -> int:
        """Bytes that are taken up, or reserved."""
        return sum(image.size for image in self.images)

    def image(self, key: str) -> HeldImage | None:
        """Return the image with that key, or None."""
        return next((image for image in self.images if image.key == key), None)


class TierDecision(msgspec.Struct, frozen=True):
    """What follows from a request."""

    state: TierState
    evicted: tuple[str, ...] = ()
    """Keys of images that have to leave the tier, before anything is loaded."""
    load: bool = False
    """Whether the image has to be brought into the tier; its room is reserved."""
    refusal: str | None = None
    """Why the image cannot be held; None if it is."""


_MIB: Final = 1 << 20


def request(state: TierState, key: str, size: int) -> TierDecision:
    """Decide on a request to hold an image of ``size`` bytes; its use is counted unless it is refused."""
    held = state.image(key)
    if held is not None:
        return TierDecision(_as_newest(state, replace(held, uses=held.uses + 1)))
    if size > state.budget:
        text = f"the image takes {-(-size // _MIB)} MiB; {state.budget // _MIB} MiB is the budget of all images"
        return TierDecision(state, refusal=text)
    evicted: list[str] = []
    free = state.budget - state.taken
    for image in state.images:
        if free >= size and len(state.images) - len(evicted) < state.most:
            break
        if image.evictable:
            evicted.append(image.key)
            free += image.size
    if len(state.images) - len(evicted) >= state.most:
        return TierDecision(state, refusal=f"{state.most} images are in use, and no more are held")
    if free < size:
        text = f"the image takes {-(-size // _MIB)} MiB; images in use leave {free // _MIB} MiB of the budget"
        return TierDecision(state, refusal=text)
    kept = tuple(image for image in state.images if image.key not in evicted)
    return TierDecision(replace(state, images=(*kept, HeldImage(key, size))), tuple(evicted), load=True)


def arrived(state: TierState, key: str) -> TierState:
    """Return the state after an image was loaded."""
    held = state.image(key)
    assert held is not None
    images = tuple(replace(image, whole=True) if image is held else image for image in state.images)
    return replace(state, images=images)


def failed(state: TierState, key: str) -> TierState:
    """Return the state after an image could not be loaded: the tier has nothing of it, and no use of it counts."""
    return replace(state, images=tuple(image for image in state.images if image.key != key))


def release(state: TierState, key: str) -> TierState:
    """Return the state after one use of an image ended."""
    held = state.image(key)
    assert held is not None
    assert held.uses
    return _as_newest(state, replace(held, uses=held.uses - 1))


def _as_newest(state: TierState, image: HeldImage) -> TierState:
    return replace(state, images=(*(other for other in state.images if other.key != image.key), image))
