"""The connections a broker holds, and which one gives way when there are too many.

A peer that has said nothing costs a descriptor and a little memory, and a thousand of them must not keep anybody else
out. So the table is bounded, each user but root has a share of it, and room is made by ending the connection that has
been silent longest: a proper peer speaks within milliseconds.
"""

import asyncio
from collections import Counter
from typing import Final

_SHARE: Final = 4
"""A user other than root may hold one in so many of all connections: no three of them can hold all."""

_OF_ROOT: Final = 16
"""One in so many places is for root alone."""


class Connections:
    """A table of tasks, each serving one connection."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[int] = Counter()
        self._closing: Counter[int] = Counter()
        """Connections that are over, whose sockets are being closed: each keeps its place until it is."""
        self._silent: dict[asyncio.Task[None], int] = {}
        """Tasks whose peer has yet to say who it is, with its uid, oldest first."""
        self._tasks: dict[asyncio.Task[None], int] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def make_room(self, uid: int) -> asyncio.Task[None] | None:
        """The task to end so that a connection of ``uid`` fits; None if it fits as it is, LookupError if it cannot."""
        over_share = uid != 0 and self._held[uid] + self._closing[uid] >= max(self._limit // _SHARE, 1)
        limit = self._limit - (self._limit // _OF_ROOT if uid != 0 else 0)
        if not over_share and len(self._tasks) + self._closing.total() < limit:
            return None
        heaviest = uid if over_share else max(self._held, key=self._held.__getitem__, default=uid)
        for task, owner in self._silent.items():
            if owner == heaviest:
                return task
        if not over_share and self._silent:
            return next(iter(self._silent))
        raise LookupError(f"{len(self._tasks)} connections are held, {self._held[uid]} of them by uid {uid}")

    def add(self, task: asyncio.Task[None], uid: int) -> None:
        """Enter a connection, silent so far; it leaves the table when its task is done."""
        self._tasks[task] = uid
        self._silent[task] = uid
        self._held[uid] += 1
        task.add_done_callback(self._remove)

    def has_spoken(self, task: asyncio.Task[None]) -> None:
        """The peer of ``task`` has said who it is: it is not ended to make room any more."""
        self._silent.pop(task, None)

    def has_finished(self, task: asyncio.Task[None]) -> None:
        """The peer of ``task`` wants nothing at present: it may give way again, after the others.

        A client that was handed over and need only close, or a command line whose user thinks.
        """
        if task in self._tasks:
            self._silent[task] = self._tasks[task]

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
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _remove(self, task: asyncio.Task[None]) -> None:
        self._silent.pop(task, None)
        uid = self._tasks.pop(task, None)
        if uid is not None:
            self._held[uid] -= 1
            if not self._held[uid]:
                del self._held[uid]
