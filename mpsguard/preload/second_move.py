"""What a program under the preload answers when the guard asks it to move (docs/concepts/moves.md).

It lies in the program's zone table (mpsguard/preload/zone_table.h), a file in memory that the program can write as it
likes: the answer is its word about itself. The guard only reads there: a stranger can hold such a file's lock.
"""

import struct
from enum import IntEnum
from typing import Final

import msgspec

from mpsguard.preload import zone_table
from mpsguard.preload.second_claim import OTHER, REASONS
from mpsguard.preload.zone_table import TableError

AT: Final = 3968
_ANSWER: Final = struct.Struct("<QIIII32s")
"""The token, number of the request, answer, microseconds of preparation and of the pause, the reason's name."""
MOST_NUMBER: Final = (1 << 32) - 1


class MoveAnswer(IntEnum):
    """What a program says of a request."""

    NONE = 0
    UNDER_WAY = 1
    MOVED = 2
    BUSY = 3
    """Work was under way for too long; it goes on as before."""
    FAILED = 4
    """A step failed, or it cannot move; it goes on as before."""


class MoveState(msgspec.Struct, frozen=True):
    """The last answer of a program."""

    number: int = 0
    """Of the request; 0: none was answered."""
    answer: MoveAnswer = MoveAnswer.NONE
    prepared: float = 0.0
    """Seconds in which the second driver was made, while the program ran."""
    paused: float = 0.0
    """Seconds for which the program stood still."""
    reason: str = ""
    token: int = 0
    """The word by which it knows that it is meant; another one after each request. 0: none yet."""


def read(fd: int) -> MoveState:
    """Return the answer in a zone table, which is checked by the reader of the claim; `TableError` for nonsense."""
    return decode(zone_table.read_block(fd, _ANSWER.size, AT, "the answer"))


def decode(block: bytes) -> MoveState:
    """Return the answer in its bytes. `TableError` if it makes no sense."""
    if len(block) < _ANSWER.size:
        raise TableError("too short for an answer")
    token, number, answer, prepared, paused, name = _ANSWER.unpack(block)
    if answer not in set(MoveAnswer):
        raise TableError(f"an answer {answer}")
    text = name.rstrip(b"\0").decode("ascii", "replace")
    reason = text if text in REASONS else OTHER if text else ""
    return MoveState(number, MoveAnswer(answer), prepared / 1e6, paused / 1e6, reason, token)


def encode(state: MoveState) -> bytes:
    """Return the bytes of an answer."""
    times = round(1e6 * state.prepared), round(1e6 * state.paused)
    return _ANSWER.pack(state.token, state.number, state.answer, *times, state.reason.encode())
