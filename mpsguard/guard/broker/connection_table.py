"""Connection table: the connections of a broker, and the choice of the one to evict when there are too many.

A silent peer costs a descriptor and a little memory, and a thousand of them must not keep other users out. So the table
is bounded, each user but root has a share of it, and the connection that has been silent longest is evicted: a correct
peer speaks within milliseconds. If none of the heaviest user's is silent, its newest gives way to a user that has
fewer. Few peers of a user may be silent at one time; further ones wait in `arrivals`.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from mpsguard.linux.identity import ROOT, is_root
from mpsguard.linux.tasks import end_tasks
from mpsguard.linux.user_queue import Ticket, UserQueue
from mpsguard.linux.user_share import Place, Room, UserShare

_SHARE: Final = 4
"""A user other than root may hold one in so many of all connections: three users cannot hold all of them."""

_OF_ROOT: Final = 16
"""One in so many places is reserved for root."""

_SILENT_OF_A_USER: Final = 16
"""Silent connections that a user other than root may have at one time; further ones wait."""

_TO_SPEAK: Final = 1.0
"""Seconds for a peer to introduce itself before a waiting peer of the same user may replace it. It takes milliseconds,
but a burst of a user's clients on a busy machine must not evict itself."""

_BETWEEN: Final = _TO_SPEAK / _SILENT_OF_A_USER
"""Seconds between two such replacements: each costs the guard 0.7 ms, and all that have come at once would be replaced
at once, while other users' handshakes wait."""


class _Connection(NamedTuple):
    user: int
    place: Place
    ticket: Ticket[int]


class ConnectionTable:
    """A bounded table of tasks, each of which serves one connection."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._places: UserShare[int] = UserShare(limit, privileged=(ROOT,))
        """Of connections that are served, and of ended ones with a socket that is still being closed."""
        self._tasks: dict[asyncio.Task[None], _Connection] = {}
        self._of_users: UserQueue[int, asyncio.Task[None]] = UserQueue()
        """The same."""
        self._silent: dict[asyncio.Task[None], tuple[float, Ticket[int]]] = {}
        """Tasks with a peer that has not introduced itself yet, or is idle, with the time since when; oldest first."""
        self._silent_of_users: UserQueue[int, asyncio.Task[None]] = UserQueue()
        """The same."""
        self.set_limit(limit)

    def __len__(self) -> int:
        return len(self._tasks)

    def set_limit(self, limit: int) -> None:
        """Change the bound. Connections beyond a lower one stay, and give way as further ones come."""
        self._places.resize(limit, max(limit // _SHARE, 1), reserved=limit // _OF_ROOT)

    def may_come(self, user: int) -> bool:
        """Return whether one more peer of a user can be served now; else it waits until others speak or leave."""
        return not self._has_silent_share(user) or self._too_long_silent(user) is not None

    def make_room(self, user: int) -> asyncio.Task[None] | None:
        """Return the task to evict for a connection of ``user``; None if there is room.

        Raises:
            LookupError: the table is full, and no connection may be evicted.
        """
        if self._has_silent_share(user) and (oldest := self._too_long_silent(user)) is not None:
            return oldest
        room = self._places.room(user)
        if room is Room.FREE:
            return None
        heaviest = user if room is Room.OWN_SHARE else self._places.heaviest(self._is_served)
        if heaviest is not None and self._silent_of_users.of(heaviest):
            return self._silent_of_users.first(heaviest)
        if room is Room.NONE:
            heavier = self._places.heavier(user, lambda each: not is_root(each) and self._is_served(each))
            if heavier is not None:
                # All of them wait for a lane, say. The newest has waited for the shortest time.
                return self._of_users.last(heavier)
            if self._silent:
                return next(iter(self._silent))
        raise LookupError(f"{len(self._tasks)} connections are held, {self._of_users.of(user)} of them by user {user}")

    def add(self, task: asyncio.Task[None], user: int) -> None:
        """Enter a connection, which is silent so far; it leaves the table when its task is done."""
        self._tasks[task] = _Connection(user, self._places.exceed(user), self._of_users.add(user, task))
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

    def closing(self, user: int, count: int = 1) -> Place:
        """Return the places of sockets of ``user`` that are being closed, which may take long."""
        return self._places.exceed(user, count)

    async def close(self, patience: float) -> None:
        """Give active connections ``patience`` seconds to finish, then end all."""
        for task in list(self._silent):
            task.cancel()
        try:
            if self._tasks:
                await asyncio.wait(set(self._tasks), timeout=patience)
        finally:
            await end_tasks(self._tasks)

    def _is_served(self, user: int) -> bool:
        return self._of_users.of(user) > 0

    def _has_silent_share(self, user: int) -> bool:
        return not is_root(user) and self._silent_of_users.of(user) >= _SILENT_OF_A_USER

    def _too_long_silent(self, user: int) -> asyncio.Task[None] | None:
        """Return the connection of a user that has silent ones that is to be replaced now, if one is."""
        oldest, newest = self._silent_of_users.first(user), self._silent_of_users.last(user)
        now = self._clock()
        is_due = now - self._silent[oldest][0] > _TO_SPEAK and now - self._silent[newest][0] > _BETWEEN
        return oldest if is_due else None

    def _mark_silent(self, task: asyncio.Task[None]) -> None:
        self._silent[task] = self._clock(), self._silent_of_users.add(self._tasks[task].user, task)

    def _unmark_silent(self, task: asyncio.Task[None]) -> None:
        silent = self._silent.pop(task, None)
        if silent is not None:
            self._silent_of_users.withdraw(silent[1])

    def _remove(self, task: asyncio.Task[None]) -> None:
        self._unmark_silent(task)
        connection = self._tasks.pop(task, None)
        if connection is not None:
            connection.place.give_back()
            self._of_users.withdraw(connection.ticket)
