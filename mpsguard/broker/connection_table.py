"""The connections a broker holds, and which one gives way when there are too many.

A peer that has said nothing costs a descriptor and a little memory, and a thousand of them must not keep anybody else
out. So the table is bounded, each user but root has a share of it, and room is made by ending the connection that has
been silent longest: a proper peer speaks within milliseconds. If none of the heaviest user's is silent, its newest
gives way to a user that has fewer. Few of a user may be silent at one time; a peer beyond that waits for its turn
(`arrivals`).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from mpsguard.tasks import end_tasks

_SHARE: Final = 4
"""A user other than root may hold one in so many of all connections: no three of them can hold all."""

_OF_ROOT: Final = 16
"""One in so many places is for root alone."""

_SILENT_OF_A_USER: Final = 64
"""Connections of a user other than root that may want nothing at one time; more wait to be served. All of them can end
at once, at some 0.05 ms each."""

_TO_SPEAK: Final = 1.0
"""Seconds for a peer to say who it is before one of the same user's that waits takes its place. It takes milliseconds,
and a burst of a user's clients on a busy machine must not drive itself out."""


class ConnectionTable:
    """A table of tasks, each serving one connection."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._held: Counter[int] = Counter()
        self._closing: Counter[int] = Counter()
        """Connections that are over, whose sockets are being closed: each keeps its place until it is."""
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Each with the uid of its peer."""
        self._silent: dict[asyncio.Task[None], float] = {}
        """Those with a peer that has yet to say who it is, or wants nothing: since when by the clock, oldest first."""
        self._silent_of: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def may_come(self, uid: int) -> bool:
        """Whether one more of a user's peers can be served, or must wait until others of it have spoken or gone."""
        if uid == 0 or self._silent_of[uid] < _SILENT_OF_A_USER:
            return True
        return self._oldest_silent(uid) is not None

    def make_room(self, uid: int) -> asyncio.Task[None] | None:
        """The task to end so that a connection of ``uid`` fits; None if it fits as it is, LookupError if it cannot."""
        if uid != 0 and self._silent_of[uid] >= _SILENT_OF_A_USER and (oldest := self._oldest_silent(uid)):
            return oldest
        over_share = uid != 0 and self._held[uid] + self._closing[uid] >= max(self._limit // _SHARE, 1)
        limit = self._limit - (self._limit // _OF_ROOT if uid != 0 else 0)
        if not over_share and len(self._tasks) + self._closing.total() < limit:
            return None
        heaviest = uid if over_share else max(self._held, key=self._held.__getitem__, default=uid)
        oldest = self._longest_silent_of(heaviest)
        if oldest is not None:
            return oldest
        if not over_share and heaviest != 0 and self._held[heaviest] > self._held[uid] + 1:
            # All of them wait for a lane, say. The newest has waited for the shortest time.
            return next(task for task in reversed(self._tasks) if self._tasks[task] == heaviest)
        if not over_share and self._silent:
            return next(iter(self._silent))
        raise LookupError(f"{len(self._tasks)} connections are held, {self._held[uid]} of them by uid {uid}")

    def add(self, task: asyncio.Task[None], uid: int) -> None:
        """Enter a connection, silent so far; it leaves the table when its task is done."""
        self._tasks[task] = uid
        self._held[uid] += 1
        self._is_silent(task)
        task.add_done_callback(self._remove)

    def has_spoken(self, task: asyncio.Task[None]) -> None:
        """The peer of ``task`` has said who it is: it is not ended to make room any more."""
        self._is_not_silent(task)

    def has_finished(self, task: asyncio.Task[None]) -> None:
        """The peer of ``task`` wants nothing at present: it may give way again, after the others.

        A client that was handed over and need only close, or a command line whose user thinks.
        """
        if task in self._tasks and task not in self._silent:
            self._is_silent(task)

    def evict(self, task: asyncio.Task[None]) -> None:
        """End a connection now and count it out, before its task has had its turn."""
        task.cancel()
        self._remove(task)

    def closes(self, uid: int) -> None:
        """The socket of a connection of ``uid`` is being closed, which may take long."""
        self._closing[uid] += 1

    def closed(self, uid: int) -> None:
        """It is closed."""
        self._closing[uid] -= 1
        if not self._closing[uid]:
            del self._closing[uid]

    async def close(self, patience: float) -> None:
        """Give those who have spoken ``patience`` seconds to finish, then end all."""
        for task in list(self._silent):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=patience)
        await end_tasks(self._tasks)

    def _longest_silent_of(self, uid: int) -> asyncio.Task[None] | None:
        return next((task for task in self._silent if self._tasks[task] == uid), None)

    def _oldest_silent(self, uid: int) -> asyncio.Task[None] | None:
        """The user's connection that has said nothing for longest, if that is too long."""
        oldest = self._longest_silent_of(uid)
        return oldest if oldest is not None and self._clock() - self._silent[oldest] > _TO_SPEAK else None

    def _is_silent(self, task: asyncio.Task[None]) -> None:
        self._silent[task] = self._clock()
        self._silent_of[self._tasks[task]] += 1

    def _is_not_silent(self, task: asyncio.Task[None]) -> None:
        if self._silent.pop(task, None) is not None:
            uid = self._tasks[task]
            self._silent_of[uid] -= 1
            if not self._silent_of[uid]:
                del self._silent_of[uid]

    def _remove(self, task: asyncio.Task[None]) -> None:
        self._is_not_silent(task)
        uid = self._tasks.pop(task, None)
        if uid is not None:
            self._held[uid] -= 1
            if not self._held[uid]:
                del self._held[uid]
