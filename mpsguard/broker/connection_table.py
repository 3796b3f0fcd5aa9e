"""Connection table: the connections of a broker, and the choice of the one to evict when there are too many.

A silent peer costs a descriptor and a little memory, and a thousand of them must not keep other users out. So the table
is bounded, each user but root has a share of it, and the connection that has been silent longest is evicted: a correct
peer speaks within milliseconds. If none of the heaviest user's is silent, its newest gives way to a user that has
fewer. Few peers of a user may be silent at one time; further ones wait in `arrivals`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from mpsguard.tasks import end_tasks

_SHARE: Final = 4
"""A user other than root may hold one in so many of all connections: three users cannot hold all of them."""

_OF_ROOT: Final = 16
"""One in so many places is reserved for root."""

_SILENT_OF_A_USER: Final = 64
"""Silent connections that a user other than root may have at one time; further ones wait. If all of them end at once,
that costs some 0.05 ms each."""

_TO_SPEAK: Final = 1.0
"""Seconds for a peer to introduce itself before a waiting peer of the same user may replace it. It takes milliseconds,
but a burst of a user's clients on a busy machine must not evict itself."""


class ConnectionTable:
    """A bounded table of tasks, each of which serves one connection."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._held: Counter[int] = Counter()
        self._closing: Counter[int] = Counter()
        """Ended connections per uid with a socket that is still being closed: each keeps its place until then."""
        self._tasks: dict[asyncio.Task[None], int] = {}
        """The uid of each task's peer."""
        self._silent: dict[asyncio.Task[None], float] = {}
        """Tasks with a peer that has not introduced itself yet, or is idle, with the time since when; oldest first."""
        self._silent_of: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def set_limit(self, limit: int) -> None:
        """Change the bound. Connections beyond a lower one stay, and give way as further ones come."""
        self._limit = limit

    def may_come(self, uid: int) -> bool:
        """Return whether one more peer of a user can be served now; else it waits until others speak or leave."""
        if uid == 0 or self._silent_of[uid] < _SILENT_OF_A_USER:
            return True
        return self._oldest_silent(uid) is not None

    def make_room(self, uid: int) -> asyncio.Task[None] | None:
        """Return the task to evict for a connection of ``uid``; None if there is room.

        Raises:
            LookupError: the table is full, and no connection may be evicted.
        """
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
        """Enter a connection, which is silent so far; it leaves the table when its task is done."""
        self._tasks[task] = uid
        self._held[uid] += 1
        self._mark_silent(task)
        task.add_done_callback(self._remove)

    def mark_active(self, task: asyncio.Task[None]) -> None:
        """Mark the peer of ``task`` as active: it has introduced itself and is not evicted any more."""
        self._unmark_silent(task)

    def mark_idle(self, task: asyncio.Task[None]) -> None:
        """Mark the peer of ``task`` as idle: it may be evicted again, after the others.

        Idle peers are clients that were handed over and need only close, and UI sessions between two commands.
        """
        if task in self._tasks and task not in self._silent:
            self._mark_silent(task)

    def evict(self, task: asyncio.Task[None]) -> None:
        """End a connection and free its place at once, before its task has run."""
        task.cancel()
        self._remove(task)

    def count_closing(self, uid: int, count: int = 1) -> None:
        """Count sockets of ``uid`` that are being closed, which may take long."""
        self._closing[uid] += count

    def count_closed(self, uid: int, count: int = 1) -> None:
        """Count sockets of ``uid`` as closed."""
        self._closing[uid] -= count
        if not self._closing[uid]:
            del self._closing[uid]

    async def close(self, patience: float) -> None:
        """Give active connections ``patience`` seconds to finish, then end all."""
        for task in list(self._silent):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=patience)
        await end_tasks(self._tasks)

    def _longest_silent_of(self, uid: int) -> asyncio.Task[None] | None:
        return next((task for task in self._silent if self._tasks[task] == uid), None)

    def _oldest_silent(self, uid: int) -> asyncio.Task[None] | None:
        """Return the user's connection that has been silent longest, if that is too long."""
        oldest = self._longest_silent_of(uid)
        return oldest if oldest is not None and self._clock() - self._silent[oldest] > _TO_SPEAK else None

    def _mark_silent(self, task: asyncio.Task[None]) -> None:
        self._silent[task] = self._clock()
        self._silent_of[self._tasks[task]] += 1

    def _unmark_silent(self, task: asyncio.Task[None]) -> None:
        if self._silent.pop(task, None) is not None:
            uid = self._tasks[task]
            self._silent_of[uid] -= 1
            if not self._silent_of[uid]:
                del self._silent_of[uid]

    def _remove(self, task: asyncio.Task[None]) -> None:
        self._unmark_silent(task)
        uid = self._tasks.pop(task, None)
        if uid is not None:
            self._held[uid] -= 1
            if not self._held[uid]:
                del self._held[uid]
