"""Which step is whole, and where: the forward state. Pure.

There are three copies of all that a step changes. A step reads the one that is whole and writes another one, so a
process that dies in the middle leaves the last step as it was. The third is for who goes on: a process that was fenced
off may still be writing to the second for a moment.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

COPIES: Final = 3


class ProgressError(Exception):
    """Not a state of this program."""


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is published after each step."""

    step: Annotated[int, Meta(ge=0)]
    """Steps that are done."""
    copy: Annotated[int, Meta(ge=0, lt=COPIES)]
    """Which copy has them."""
    target: Annotated[int, Meta(ge=0, lt=COPIES)]
    """Which copy the next step writes."""
    loss: float | None = None
    """Of the last step."""


def encode(progress: Progress) -> bytes:
    """As bytes."""
    return msgspec.json.encode(progress)


def decode(data: bytes) -> Progress:
    """What `encode` made; ProgressError."""
    try:
        return msgspec.json.decode(data, type=Progress)
    except msgspec.DecodeError as error:
        raise ProgressError(f"not a state: {error}") from None


def inherited(progress: Progress) -> Progress:
    """As a process publishes it, before it does anything, whose predecessor has ended, or may be about to."""
    return msgspec.structs.replace(progress, target=_other(progress.copy, progress.target))


def advanced(progress: Progress, loss: float) -> Progress:
    """When the next step is whole."""
    return Progress(progress.step + 1, progress.target, _other(progress.copy, progress.target), loss)


def _other(one: int, another: int) -> int:
    return next(copy for copy in range(COPIES) if copy not in (one, another))
