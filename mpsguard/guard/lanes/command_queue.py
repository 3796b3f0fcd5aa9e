"""The commands that wait for one lane's control daemon: the guard's own first, then those of its users in turn."""

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar

from mpsguard.linux.user_queue import UserQueue

MAX_OWN: Final = 256
"""Of the guard's own: it asks some ten at once, each with a deadline of seconds; so many means that nothing answers."""
MAX_OF_A_USER: Final = 16
"""A command takes milliseconds: more than sixteen sessions of one user that wait at once are no person's."""
MAX_OF_USERS: Final = 256
"""Of all users together; beyond that, one more is taken only of a user that has none waiting."""

T = TypeVar("T")


class QueueFullError(Exception):
    """One command line of this user waits already."""


class CommandQueue(Generic[T]):
    """Entries by owner: None is the guard. One of each user stands in line, its others behind that."""

    def __init__(self) -> None:
        self._own: deque[T] = deque()
        self._users: UserQueue[int, T] = UserQueue()
        self._filled = asyncio.Event()

    def put(self, owner: int | None, entry: T) -> None:
        """Add one; QueueFullError if its owner has its share waiting."""
        if owner is None:
            if len(self._own) >= MAX_OWN:
                raise QueueFullError(f"{MAX_OWN} commands wait already")
            self._own.append(entry)
        else:
            waiting = self._users.of(owner)
            if waiting >= MAX_OF_A_USER:
                raise QueueFullError(f"{MAX_OF_A_USER} commands of this user wait already")
            if waiting and len(self._users) >= MAX_OF_USERS:
                raise QueueFullError(f"{MAX_OF_USERS} commands wait already")
            self._users.add(owner, entry)
        self._filled.set()

    async def get(self) -> T:
        """Take the next one, as soon as there is one."""
        while (entry := self.take()) is None:
            self._filled.clear()
            await self._filled.wait()
        return entry

    def take(self) -> T | None:
        """Take the next one; None if there is none."""
        if self._own:
            return self._own.popleft()
        following = self._users.take()
        return None if following is None else following[1]
