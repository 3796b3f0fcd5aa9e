"""Faults at named points of the server. All processes of a program map one file, which says where the next one ends.

The traps are ordered, and only the first one that has not been triggered is armed; so "the second process, when it has
been promoted" is the second trap.
"""

import mmap
import os
import signal
import struct
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

VARIABLE: Final = "TAKEOVER_TRAPS"
"""Environment variable with the file's path."""


class Point(IntEnum):
    """Where a process can be hit."""

    STARTED = 1
    """A process has just started."""
    MAPPED = 2
    """It has mapped the cache, and is about to say that it is ready."""
    PROMOTED = 3
    TAKEN = 4
    """It was promoted, and has the connections."""
    REPUBLISHED = 5
    """It has recorded the requests that may have caused the fault."""
    ACCEPTED = 6
    KNOWN = 7
    """A request was published that still lies in its connection."""
    COMPUTED = 8
    """The cache is written, the state not published."""
    PUBLISHED = 9
    """The state is published, nothing written to the clients."""
    HALF_WRITTEN = 10
    """Half of what is due was written to a client."""
    WRITTEN = 11
    FINISHED = 12
    """All is written to a client, and its connection is still kept."""
    DROPPED = 13
    """Its connection is closed, and its request still in the state."""


class Effect(IntEnum):
    """What happens there."""

    KILL = 1
    """SIGKILL."""
    FENCE = 2
    """It loses its lease, and does not know: it goes on with what it is doing."""


class Trap(NamedTuple):
    """Goes off when a process comes to ``point`` for the ``times``-th time since it was armed."""

    point: Point
    times: int
    effect: Effect = Effect.KILL


_HEADER: Final = struct.Struct("=QQ")
_TRAP: Final = struct.Struct("=QQQ")
_SIZE: Final = 4096
_COUNT: Final = struct.Struct("=Q")
_COUNTS_AT: Final = 2048


class Traps:
    """Owns the mapping of the file. One process at a time changes it: the harness if all are idle, or the one hit."""

    def __init__(self, path: Path) -> None:
        """Map it; it is made if it is not there."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _SIZE)
            self._memory = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)

    def set(self, traps: Sequence[Trap]) -> None:
        """Set them up, instead of those that there were."""
        _HEADER.pack_into(self._memory, 0, 0, 0)
        for index, (point, times, effect) in enumerate(traps):
            _TRAP.pack_into(self._memory, _at(index), point, times, effect)
        _HEADER.pack_into(self._memory, 0, 0, len(traps))

    def gone_off(self) -> int:
        """How many have."""
        return int(_HEADER.unpack_from(self._memory)[0])

    def reached(self, point: Point) -> int:
        """How often processes have been at a point, at least: two that come at once may count as one."""
        return int(_COUNT.unpack_from(self._memory, _COUNTS_AT + point * _COUNT.size)[0])

    def reach(self, point: Point) -> Effect | None:
        """A process is at a point: it does not come back, or gets to know what else happens to it."""
        _COUNT.pack_into(self._memory, _COUNTS_AT + point * _COUNT.size, self.reached(point) + 1)
        gone_off, count = _HEADER.unpack_from(self._memory)
        if gone_off >= count:
            return None
        armed, times, effect = _TRAP.unpack_from(self._memory, _at(gone_off))
        if armed != point:
            return None
        if times > 1:
            _TRAP.pack_into(self._memory, _at(gone_off), armed, times - 1, effect)
            return None
        _HEADER.pack_into(self._memory, 0, gone_off + 1, count)
        if effect == Effect.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        return Effect(effect)

    def close(self) -> None:
        """Unmap it."""
        self._memory.close()


def _at(index: int) -> int:
    return _HEADER.size + index * _TRAP.size
