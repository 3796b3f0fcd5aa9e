"""The forward state: which step is whole, and in which copy. Pure.

There are three copies of everything that a step changes. A step reads the whole copy and writes another one, so a
process that dies in the middle leaves the last step intact. The third copy is for the successor: a process that was
fenced off may still be writing to the second one for a moment.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

COPIES: Final = 3


class ProgressError(Exception):
    """Not a state of this program."""


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state that is published after each step."""

    step: Annotated[int, Meta(ge=0)]
    """Number of finished steps."""
    copy: Annotated[int, Meta(ge=0, lt=COPIES)]
    """The copy that holds them."""
    target: Annotated[int, Meta(ge=0, lt=COPIES)]
    """The copy that the next step writes."""
    loss: float | None = None
    """Loss of the last step."""


def encode(progress: Progress) -> bytes:
    """Return the encoded state."""
    return msgspec.json.encode(progress)


def decode(data: bytes) -> Progress:
    """Decode a state; raise ProgressError."""
    try:
        return msgspec.json.decode(data, type=Progress)
    except msgspec.DecodeError as error:
        raise ProgressError(f"not a state: {error}") from None


def after_failover(progress: Progress) -> Progress:
    """Return the state that a successor publishes before it does anything else: with a target of its own."""
    return msgspec.structs.replace(progress, target=_other(progress.copy, progress.target))


def advanced(progress: Progress, loss: float) -> Progress:
    """Return the state after the next step."""
    return Progress(progress.step + 1, progress.target, _other(progress.copy, progress.target), loss)


def _other(one: int, another: int) -> int:
    return next(copy for copy in range(COPIES) if copy not in (one, another))
