"""Turns at a lane's control daemon: one client of each user after another.

The vendor's daemon has one thread and serves connections in the order of coming (driver 580.159.04): the clients of all
users would wait behind hundreds of one user's.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from mpsguard.linux.user_lock import UserLock

AT_ONCE: Final = 8
"""Clients at the daemon: one that it serves, and enough after it that it need not wait for the guard."""

LONGEST: Final = 0.05
"""Seconds that a turn lasts at most: a daemon that starts a server may take seconds for one client, and decides
which of the others it serves meanwhile."""


class LaneTurns:
    """The queues of clients that wait for one lane's control daemon, by user."""

    def __init__(self) -> None:
        self._places: UserLock[int] = UserLock(AT_ONCE)

    @asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn of user ``uid``; the value ends it, as does the end of the body.

        Has no deadline of its own: each turn ends within `LONGEST`. The client may be at the daemon for longer, for
        hours if another user's server has to end first, so that nothing bounds how many are.
        """
        with await self._places.acquire(uid) as place:
            timer = asyncio.get_running_loop().call_later(LONGEST, place.give_back)
            try:
                yield place.give_back
            finally:
                timer.cancel()
