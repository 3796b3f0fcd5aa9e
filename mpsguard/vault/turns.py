"""Shares the vault's event loop between users: one request of each at a time, and limited processor time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final

SHARE: Final = 0.2
"""Share of the loop's time for the requests of one user: handshakes of other users' clients run on the same loop. A
request takes about 0.1 ms, and one that saves the largest session 3 ms: 2,000 or 60 of them in a second."""

BURST_S: Final = 0.05
"""Seconds of processor time that a user may take at once before its share counts: about 500 requests, more than a
program makes at its start or after a failover."""

_USERS_KEPT: Final = 128
"""Maximum number of users in the table before those without debt are removed: twice as many as have a porter."""

ROOT: Final = 0


class _UserTurn:
    def __init__(self) -> None:
        self.paid_at = 0.0
        """Time at which its share has paid for the time it took (event loop clock)."""
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.next: asyncio.Handle | None = None


class Turns:
    """Hands out turns on one event loop. Root has its turn at once."""

    def __init__(self) -> None:
        self._users: dict[int, _UserTurn] = {}

    async def take(self, uid: int) -> None:
        """Wait until the next request of ``uid`` may be served; in any case, other tasks run in between."""
        if uid == ROOT:
            await asyncio.sleep(0)
            return
        user = self._user(uid)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        user.waiting.append(turn)
        if user.next is None:
            self._plan(user)
        await turn

    async def metered(self, uid: int, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` and charge its processor time to ``uid``."""
        await _Metered(work, partial(self.spent, uid))

    def spent(self, uid: int, seconds: float) -> None:
        """Charge processor time to a user."""
        if uid != ROOT:
            user = self._user(uid)
            user.paid_at = max(user.paid_at, asyncio.get_running_loop().time()) + seconds / SHARE

    def _user(self, uid: int) -> _UserTurn:
        user = self._users.get(uid)
        if user is None:
            if len(self._users) >= _USERS_KEPT:
                now = asyncio.get_running_loop().time()
                self._users = {of: each for of, each in self._users.items() if each.waiting or each.paid_at > now}
            user = self._users[uid] = _UserTurn()
        return user

    def _plan(self, user: _UserTurn) -> None:
        loop = asyncio.get_running_loop()
        wait = user.paid_at - BURST_S / SHARE - loop.time()
        user.next = loop.call_later(wait, self._grant, user) if wait > 0 else loop.call_soon(self._grant, user)

    def _grant(self, user: _UserTurn) -> None:
        user.next = None
        while user.waiting:
            turn = user.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if user.waiting:
            # Runs after the task that has its turn now, so the time of that task has been charged by then.
            self._plan(user)


class _Metered:
    """A coroutine with timed steps. A step is what runs before the next other task can run."""

    def __init__(self, work: Coroutine[Any, Any, None], spent: Callable[[float], None]) -> None:
        self._work = work
        self._spent = spent

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            began = time.thread_time()
            try:
                waits_for = step()
            except StopIteration:
                return
            finally:
                self._spent(time.thread_time() - began)
            try:
                step = partial(self._work.send, (yield waits_for))
            except BaseException as error:
                step = partial(self._work.throw, error)
