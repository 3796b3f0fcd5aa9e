"""Turns at a lane's control daemon: one client of each user after another.

The vendor's daemon has one thread and serves connections in the order of coming (driver 580.159.04): the clients of all
users would wait behind hundreds of one user's.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

AT_ONCE: Final = 8
"""Clients at the daemon: one that it serves, and enough after it that it need not wait for the guard."""

LONGEST: Final = 0.05
"""Seconds that a turn lasts at most: a daemon that starts a server may take seconds for one client, and decides
which of the others it serves meanwhile."""


class LaneTurns:
    """The queues of clients that wait for one lane's control daemon, by user."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        """The user with the next turn comes first; no queue is empty."""
        self._open = 0

    @asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn of user ``uid``; the value ends it, as does the end of the body.

        Has no deadline of its own: each turn ends within `LONGEST`. The client may be at the daemon for longer, for
        hours if another user's server has to end first, so that nothing bounds how many are.
        """
        await self._begin(uid)
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._end()

        timer = asyncio.get_running_loop().call_later(LONGEST, end)
        try:
            yield end
        finally:
            timer.cancel()
            end()

    async def _begin(self, uid: int) -> None:
        if self._open < AT_ONCE and not self._waiting:
            self._open += 1
            return
        begun = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(begun)
        try:
            await begun
        except asyncio.CancelledError:
            if begun.cancelled():
                self._leave(uid, begun)
            else:
                self._end()
            raise

    def _leave(self, uid: int, begun: asyncio.Future[None]) -> None:
        queue = self._waiting.get(uid, deque())
        # Cancelled before this: its turn may have come, and been passed on, meanwhile.
        if begun in queue:
            queue.remove(begun)
            if not queue:
                del self._waiting[uid]

    def _end(self) -> None:
        self._open -= 1
        while self._open < AT_ONCE and self._waiting:
            uid = next(iter(self._waiting))
            queue = self._waiting.pop(uid)
            begun = queue.popleft()
            if queue:
                self._waiting[uid] = queue
            if not begun.cancelled():
                self._open += 1
                begun.set_result(None)
