"""A lock that users get in turn, so that a crowd of one user's does not come before another user's first."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairLock:
    """Held by one task at a time. Those that wait are served by user in turn, and each user's in order."""

    def __init__(self) -> None:
        self._locked = False
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        """By uid; the first is the next to be served."""

    @asynccontextmanager
    async def held(self, uid: int) -> AsyncIterator[None]:
        """Wait for the lock in the line of ``uid``, and hold it."""
        await self._acquire(uid)
        try:
            yield
        finally:
            self._pass_on()

    async def _acquire(self, uid: int) -> None:
        if not self._locked:
            self._locked = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # Its turn may have come just before.
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the lock to the next that still waits."""
        while self._waiting:
            uid = next(iter(self._waiting))
            line = self._waiting.pop(uid)
            turn = line.popleft()
            if line:
                self._waiting[uid] = line
            if not turn.done():
                turn.set_result(None)
                return
        self._locked = False
