"""A lock that users get in turn, so that a crowd of one user's does not come before another user's first."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairLock:
    """Held by one task at a time, or by a few. Those that wait are served by user in turn, and each user's in order."""

    def __init__(self, places: int = 1) -> None:
        """``places``: how many hold it at a time."""
        self._free = places
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        """By uid; the first is the next to be served. Nothing waits while a place is free."""

    @asynccontextmanager
    async def held(self, uid: int) -> AsyncIterator[None]:
        """Wait for the lock in the line of ``uid``, and hold it."""
        await self.acquire(uid)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, uid: int) -> None:
        """Wait for a place in the line of ``uid``; `release` gives it back."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # Its turn may have come just before.
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give a place to the next that still waits."""
        while self._waiting:
            uid = next(iter(self._waiting))
            line = self._waiting.pop(uid)
            turn = line.popleft()
            if line:
                self._waiting[uid] = line
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
