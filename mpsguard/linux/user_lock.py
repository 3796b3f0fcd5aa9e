"""A lock that users get in turn, so that a crowd of one user's does not come before another user's first."""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from mpsguard.linux.user_queue import UserQueue
from mpsguard.linux.user_share import Place, UserShare

U = TypeVar("U", bound=Hashable)


class UserLock(Generic[U]):
    """Held by one task at a time, or by a few. Those that wait are served by user in turn, and each user's in order."""

    def __init__(self, places: int = 1) -> None:
        """``places``: how many hold it at a time."""
        self._share: UserShare[U] = UserShare(places, returned=self._wake)
        self._waiting: UserQueue[U, asyncio.Future[Place]] = UserQueue()
        """Nothing waits while a place is free."""

    @asynccontextmanager
    async def held(self, user: U) -> AsyncIterator[None]:
        """Wait for the lock in the line of ``user``, and hold it."""
        with await self.acquire(user):
            yield

    async def acquire(self, user: U) -> Place:
        """Wait for a place in the line of ``user``; the caller gives it back, in the event loop."""
        place = self._share.take(user)
        if place is not None:
            return place
        turn: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        ticket = self._waiting.add(user, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            # Its turn may have come just before.
            if not self._waiting.withdraw(ticket) and not turn.cancelled():
                turn.result().give_back()
            raise

    def _wake(self) -> None:
        """Give free places to the next that still wait."""
        while (following := self._waiting.take(self._share.has_room)) is not None:
            user, turn = following
            if not turn.done():
                turn.set_result(self._share.exceed(user))
