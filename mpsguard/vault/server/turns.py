"""Shares the vault's event loop between users: one request of each at a time, and limited processor time."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from mpsguard.linux.identity import is_root
from mpsguard.linux.user_budget import UserBudget
from mpsguard.linux.user_queue import UserQueue

SHARE: Final = 0.2
"""Share of the loop's time for the requests of one user: handshakes of other users' clients run on the same loop. A
request takes about 0.1 ms, and one that saves the largest session 3 ms: 2,000 or 60 of them in a second."""

BURST_S: Final = 0.05
"""Seconds of processor time that a user may take at once before its share counts: about 500 requests, more than a
program makes at its start or after a failover."""


class Turns:
    """Hands out turns on one event loop. Root has its turn at once."""

    def __init__(self) -> None:
        self._budget: UserBudget[int] = UserBudget(BURST_S, BURST_S / SHARE)
        self._waiting: UserQueue[int, asyncio.Future[None]] = UserQueue()
        self._next: dict[int, asyncio.Handle] = {}
        """By user that waits: when its next request has its turn."""

    async def take(self, user: int) -> None:
        """Wait until the next request of ``user`` may be served; in any case, other tasks run in between."""
        if is_root(user):
            await asyncio.sleep(0)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = self._waiting.add(user, turn)
        if user not in self._next:
            self._plan(user)
        try:
            await turn
        finally:
            self._waiting.withdraw(ticket)

    async def metered(self, user: int, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` and charge its processor time to ``user``."""
        await _Metered(work, partial(self.spent, user))

    @contextmanager
    def charged(self, user: int) -> Iterator[None]:
        """Charge the processor time of the block, which awaits nothing, to ``user``."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.spent(user, time.thread_time() - began)

    def spent(self, user: int, seconds: float) -> None:
        """Charge processor time to a user."""
        if not is_root(user):
            self._budget.spend(user, asyncio.get_running_loop().time(), seconds)

    def _plan(self, user: int) -> None:
        loop = asyncio.get_running_loop()
        wait = self._budget.wait(user, loop.time())
        self._next[user] = loop.call_later(wait, self._grant, user) if wait > 0 else loop.call_soon(self._grant, user)

    def _grant(self, user: int) -> None:
        del self._next[user]
        while self._waiting.of(user):
            turn = self._waiting.pop_first(user)
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting.of(user):
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
