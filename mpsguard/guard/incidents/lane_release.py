"""Lane release: ends the server of a faulted lane that its clients have left, so that the lane recovers.

A server lists a process that has gone over for as long as that lives, and refuses newcomers with error 807 meanwhile
(580.159.04, H100). So does the
server of a lane on which second drivers waited when it faulted: their programs work on, and do not notice. Any other
server is left alone: it recovers when its clients have ended.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

LOST_FOR: Final = 30.0
"""Seconds after the fault for which a client is left that has lost its work: a GPU core dump takes up to 10 s."""
MAY_GO_FOR: Final = 600.0
"""The same for a client that says that it can go over: an idle program learns of the fault at its next call. Whether a
takeover succeeds after the end of the server was not measured."""


class Remaining(msgspec.Struct, frozen=True):
    """A process that a faulted lane's server still has."""

    pid: int
    elsewhere: bool
    """It is a client with its work on another lane: it went over, or had a second driver here that waited."""
    may_go_over: bool


def due(remaining: Iterable[Remaining], faulted_at: float) -> float | None:
    """Return when the server is to be told to end, on the clock of ``faulted_at``; None: never, it recovers by itself.

    Pure. The answer holds as long as ``remaining`` does.
    """
    there = tuple(remaining)
    if not any(each.elsewhere for each in there):
        return None
    waits = [MAY_GO_FOR if each.may_go_over else LOST_FOR for each in there if not each.elsewhere]
    return faulted_at + max(waits, default=0.0)
