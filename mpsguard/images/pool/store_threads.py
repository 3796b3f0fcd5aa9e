"""Threads for the files of stores: a store that does not answer holds up what is asked of it alone."""

from collections.abc import Callable
from typing import Final, TypeVar

from mpsguard.images.pool.errors import PoolError
from mpsguard.linux.side_threads import NoThreadError, NoTurnError, SharedThreads

OF_A_STORE: Final = 8
"""Calls at a time; each has its thread until it returns, also when nothing waits for it any more."""
_MOST: Final = 256
_PATIENCE: Final = 60.0
"""Seconds that a call waits for others to return."""

T = TypeVar("T")


class StoreThreads:
    """Owns threads that do not keep the process from ending: a read of a network file system may never return."""

    def __init__(self, name: str) -> None:
        """``name``: of each thread."""
        self._threads: Final[SharedThreads[str]] = SharedThreads(name, _MOST, OF_A_STORE)

    async def run(self, store: str, call: Callable[[], T]) -> T:
        """Return what ``call`` returns, or raise its exception.

        Args:
            store: path of the store that it uses.
            call: goes on if the caller is cancelled; what it returns then is lost.

        Raises:
            PoolError: the calls before it have not returned, or the operating system gives no thread.
        """
        try:
            return await self._threads.call(store, call, _PATIENCE)
        except NoTurnError:
            raise PoolError(f"the store {store} does not answer") from None
        except NoThreadError:
            raise PoolError("the pool has reached its limit of processes") from None

    def close(self, within: float) -> bool:
        """Wait ``within`` seconds for all calls to return; False if one does not."""
        return self._threads.close(within)
