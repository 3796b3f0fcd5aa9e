"""What the ``uvm`` sensor knows of one client."""

import asyncio
import os
import random
import time
from typing import Final

import msgspec

from mpsguard.guard.sensors.uvm_space import WatchedSpace
from mpsguard.linux.identity import ProcessKey

LOOKS: Final = (0.01, 0.02, 0.05, 0.12, 0.3, 0.5, 1.0)
"""Seconds between the looks at a client after a handshake: eight in 2 s, for its address space, then for its GPUs."""

LATER: Final = 5.0
"""Seconds between the looks after those, at the shortest: a client may open its address space when it likes."""

LATER_SHARE: Final = 1000
"""Times as long as a look at each client takes, a client is left alone: all looks together take 0.1 % of a core."""

LATEST: Final = 60.0
"""At the longest: a client may also bring it about that looks at it take long."""

_SPREAD: Final = 0.25
"""By which part of that time a look comes sooner or later: clients that came together are not always looked at so."""
SLOW: Final = 2.0
"""Seconds after which a look, which takes some milliseconds, is said to be held up."""

MAX_EXCHANGES: Final = 3
"""Times a descriptor of the device may become another file between being looked at and being copied. A program that
closes and opens files does it once in a long while; one that does it on purpose is looked at no more."""


class Attachment(msgspec.Struct, frozen=True):
    """Whether a client is watched."""

    process: ProcessKey
    attached: bool
    reason: str
    """Why it is not (yet); "" if it is."""
    unwatchable: bool = False
    """It has, or has had, something that should be watched and cannot be: not merely nothing to watch yet."""


class WatchedClient:
    """Owns a pidfd and the timer of the next look. All in one event loop."""

    def __init__(self, key: ProcessKey, uid: int) -> None:
        self.key = key
        self.uid = uid
        self.spaces: list[WatchedSpace] = []
        self.anchors: tuple[int, ...] = ()
        """See `Found.anchors`."""
        self.reason = "it has not been looked at yet"
        """Why it has nothing that could be watched."""
        self.trouble = ""
        """Why something of it cannot be watched, as the last look at all of its descriptors has it."""
        self._troubles = ""
        """The same, of the looks since the last one at the first of its descriptors."""
        self.lost = ""
        """The same, of what will not be watched again, whatever later looks find."""
        self.told = False
        """Whether it was last said that it cannot be watched."""
        self.pidfd = -1
        self.looks = 0
        self.first = 0
        """The descriptor at which the next look begins; see `Found.next_descriptor`."""
        self.exchanges = 0
        self.looking_since: float | None = None
        self.look_again = False
        """It has come again while it was being looked at."""
        self.let_be = False
        """There is nothing to look for until it comes again."""
        self.timer: asyncio.TimerHandle | None = None
        self.asking: list[asyncio.Future[None]] = []
        """Done when all of its descriptors have been looked at."""

    @property
    def unwatchable(self) -> str:
        """Why something of it cannot be watched; "" if all that it has is."""
        return self.lost or self.trouble

    def looked(self, first: int, next_descriptor: int | None, trouble: str) -> None:
        """Take in what a look found that cannot be watched, from the descriptor ``first`` to the next look's."""
        self._troubles = trouble or (self._troubles if first else "")
        self.first = next_descriptor or 0
        if next_descriptor is None:
            self.trouble = self._troubles
        else:
            self.trouble = self.trouble or self._troubles

    def attachment(self) -> Attachment:
        """How it stands now."""
        if self.unwatchable:
            return Attachment(self.key, False, self.unwatchable, unwatchable=True)
        if self.spaces:
            return Attachment(self.key, True, "")
        since = self.held_up()
        delay = "" if since is None else f"; the driver has held up a look at it for {since:.0f} s"
        return Attachment(self.key, False, self.reason + delay)

    def held_up(self) -> float | None:
        """For how many seconds a look at it has been going on, if that is too long."""
        if self.looking_since is None:
            return None
        since = time.monotonic() - self.looking_since
        return since if since > SLOW else None

    def answer(self) -> None:
        """Wake the callers that ask about it."""
        for asking in self.asking:
            if not asking.done():
                asking.set_result(None)
        self.asking.clear()

    def cancel_timer(self) -> None:
        """Forget the next look."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def close(self) -> None:
        """Give back what is needed to look at it."""
        self.cancel_timer()
        self.answer()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def until_next_look(looks: int, took: float, clients: int) -> float:
    """Return the seconds until the next look at one of so many ``clients``, after its ``looks``-th, which ``took`` so
    many seconds."""
    if looks <= len(LOOKS):
        return LOOKS[looks - 1]
    return max(LATER, min(LATEST, LATER_SHARE * took * clients)) * random.uniform(1 - _SPREAD, 1 + _SPREAD)  # noqa: S311  # nothing secret
