"""The request for a move of a program under the preload, and its answer (docs/concepts/moves.md).

Both lie in the program's zone table (mpsguard/preload/zone_table.h), a file in memory that the program can write as it
likes: the answer is its word about itself. The preload reads the request in a thread of its own.
"""

import os
import struct
from enum import IntEnum
from typing import Final

import msgspec

from mpsguard.preload import zone_table
from mpsguard.preload.second_claim import OTHER, REASONS
from mpsguard.preload.zone_table import TableError

REQUEST_AT: Final = 3968
_REQUEST: Final = struct.Struct("<IHH")
"""Number, share in hundredths of a percent, what is asked beside it."""
_SHUT_DOWN: Final = 1
ANSWER_AT: Final = 3976
_ANSWER: Final = struct.Struct("<IIII32s")
"""Number of the request, answer, microseconds of preparation and of the pause, name of the reason."""
_READS: Final = 5
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


def ask(fd: int, number: int, share: float | None, *, shut_down: bool) -> None:
    """Write a request into a zone table.

    Args:
        fd: the table's.
        number: another one than before, from 1 to `MOST_NUMBER`; 0 takes the request back.
        share: percent of the SMs, for the driver's own variable; None: as the program's environment has it.
        shut_down: whether the program is to close its old connections itself.

    Raises:
        TableError: it is none.
        OSError: it cannot be written.
    """
    zone_table.check_is_memfd(fd)
    zone_table.check_head(os.pread(fd, zone_table.HEADER.size, 0))
    request = _REQUEST.pack(number, round(100 * (share or 0.0)), _SHUT_DOWN if shut_down else 0)
    # A reader's own descriptor is not for writing.
    writer = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(writer, request, REQUEST_AT)
    finally:
        os.close(writer)


def read(fd: int) -> MoveState:
    """Return the answer in a zone table, which is checked by the reader of the claim; `TableError` for nonsense."""
    before = os.pread(fd, _ANSWER.size, ANSWER_AT)
    for _ in range(_READS):
        after = os.pread(fd, _ANSWER.size, ANSWER_AT)
        if after == before:
            return decode(after)
        before = after
    raise TableError("the answer is being written all the time")


def decode(block: bytes) -> MoveState:
    """Return the answer in its bytes. `TableError` if it makes no sense."""
    if len(block) < _ANSWER.size:
        raise TableError("too short for an answer")
    number, answer, prepared, paused, name = _ANSWER.unpack(block)
    if answer not in set(MoveAnswer):
        raise TableError(f"an answer {answer}")
    text = name.rstrip(b"\0").decode("ascii", "replace")
    reason = text if text in REASONS else OTHER if text else ""
    return MoveState(number, MoveAnswer(answer), prepared / 1e6, paused / 1e6, reason)


def encode(state: MoveState) -> bytes:
    """Return the bytes of an answer."""
    times = round(1e6 * state.prepared), round(1e6 * state.paused)
    return _ANSWER.pack(state.number, state.answer, *times, state.reason.encode())
