"""Threads for the files of stores: a store that does not answer holds up what is asked of it alone."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from mpsguard.linux.side_threads import SideThreads
from mpsguard.pool.errors import PoolError

OF_A_STORE: Final = 8
"""Calls at a time; each has its thread until it returns, also when nothing waits for it any more."""
_MOST: Final = 256
_PATIENCE: Final = 60.0
"""Seconds that a call waits for others of its store to return."""

T = TypeVar("T")


class _Share:
    """The calls of one store."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(OF_A_STORE)
        self.calls = 0
        """Those that wait for a place, too."""


class StoreThreads:
    """Owns threads that do not keep the process from ending: a read of a network file system may never return."""

    def __init__(self, name: str) -> None:
        """``name``: of each thread."""
        self._threads: Final = SideThreads(name, _MOST)
        self._shares: Final[dict[str, _Share]] = {}

    async def run(self, store: str, call: Callable[[], T]) -> T:
        """Return what ``call`` returns, or raise its exception.

        Args:
            store: path of the store that it uses.
            call: goes on if the caller is cancelled; what it returns then is lost.

        Raises:
            PoolError: the calls before it have not returned, or the operating system gives no thread.
        """
        share = self._shares.setdefault(store, _Share())
        share.calls += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                await share.places.acquire()
        except TimeoutError:
            self._leave(store, share)
            raise PoolError(f"the store {store} does not answer") from None
        except asyncio.CancelledError:
            self._leave(store, share)
            raise
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def ended(tell: Callable[[], object]) -> None:
            share.places.release()
            self._leave(store, share)
            if not outcome.done():
                tell()

        def work() -> None:
            tell: Callable[[], object]
            try:
                tell = partial(outcome.set_result, call())
            except Exception as error:  # it is the caller's
                tell = partial(outcome.set_exception, error)
            # A loop that has ended waits for nothing.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended, tell)

        try:
            self._threads.run(work)
        except RuntimeError:
            share.places.release()
            self._leave(store, share)
            raise PoolError("the pool has reached its limit of processes") from None
        return await outcome

    def close(self, within: float) -> bool:
        """Wait ``within`` seconds for all calls to return; False if one does not."""
        return self._threads.close(within)

    def _leave(self, store: str, share: _Share) -> None:
        share.calls -= 1
        if not share.calls:
            del self._shares[store]
