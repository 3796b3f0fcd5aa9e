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

MOST: Final = 32
"""Clients at the daemon, with those of which the turn has ended by the clock; the vendor's backlog is 128."""

LONGEST: Final = 0.05
"""Seconds that a turn lasts at most: a daemon that starts a server may take seconds for one client, and decides
which of the others it serves meanwhile."""


class LaneTurns:
    """The queues of clients that wait for one lane's control daemon, by user."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        """The user with the next turn comes first; no queue is empty."""
        self._open = 0
        """Turns that have not ended."""
        self._present = 0
        """Clients at the daemon."""

    @asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn of user ``uid``; the value ends it, as does the end of the body.

        Has no deadline of its own: each turn ends within `LONGEST`, as long as fewer than `MOST` clients are there.
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
            self._present -= 1
            if ended:
                self._go_on()
            else:
                end()

    async def _begin(self, uid: int) -> None:
        if self._has_room() and not self._waiting:
            self._take()
            return
        begun = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(begun)
        try:
            await begun
        except asyncio.CancelledError:
            if begun.cancelled():
                self._leave(uid, begun)
            else:
                self._present -= 1
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
        self._go_on()

    def _has_room(self) -> bool:
        return self._open < AT_ONCE and self._present < MOST

    def _take(self) -> None:
        self._open += 1
        self._present += 1

    def _go_on(self) -> None:
        while self._has_room() and self._waiting:
            uid = next(iter(self._waiting))
            queue = self._waiting.pop(uid)
            begun = queue.popleft()
            if queue:
                self._waiting[uid] = queue
            if not begun.cancelled():
                self._take()
                begun.set_result(None)
