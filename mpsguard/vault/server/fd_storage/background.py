"""Connects the vault to its storage: packs bundles, removes them in the background, and refills a lost storage."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.descriptors.fd_closer import FdCloser
from mpsguard.linux.tasks import Owner, beside
from mpsguard.vault.server.fd_storage.storage import FdStorage
from mpsguard.vault.wire.errors import UnavailableError

T = TypeVar("T")

_RETRY: Final = 1.0
"""Seconds until what could not be stored is tried again."""

Contents = Callable[[], dict[str, tuple[int, ...]]]
"""Returns what should be stored at this moment: the descriptors of each bundle by name."""


class BackgroundStorage:
    """Owns the storage, the tasks that use it, and the thread that closes descriptors."""

    def __init__(self, storage: FdStorage) -> None:
        self._storage = storage
        self._tasks = Owner()
        self._unkept: set[str] = set()
        self._has_lost_all = False
        """Whether what is missing has yet to be looked up."""
        self.losses = 0
        """Number of times that the storage has lost its content."""
        self._closer = FdCloser()

    @property
    def unkept(self) -> int:
        """Number of bundles that should be in the storage and are not."""
        return len(self._unkept)

    async def keep(self, name: str, fds: Sequence[int]) -> None:
        """Return when copies of ``fds`` are stored; raise UnavailableError if they could not be stored."""
        try:
            bundle = fd_bundle.pack(name.encode(), fds)
        except OSError as error:
            raise UnavailableError(f"{len(fds)} descriptors cannot be kept: {error.strerror}") from None
        await self._storage.keep(name, bundle)
        self._unkept.discard(name)

    def forget(self, name: str) -> None:
        """Remove a bundle in the background."""
        self.spawn(self.forget_and_wait(name))

    async def forget_and_wait(self, name: str) -> None:
        """Remove a bundle and wait until that is done."""
        self._unkept.discard(name)
        with suppress(UnavailableError):
            await self._storage.forget(name)

    def dispose(self, fds: Sequence[int]) -> None:
        """Close descriptors of memory in the background."""
        self._closer.take(fds)

    async def watch(self, contents: Contents) -> None:
        """Refill the storage whenever it has lost its content; runs until cancelled."""
        while True:
            async with beside(self._storage.lost()) as (lost,):
                while not lost.done() and not await self._is_full(contents):
                    await asyncio.wait({lost}, timeout=_RETRY)
                await asyncio.wait({lost})
            try:
                lost.result()
            except (UnavailableError, OSError):
                # There is no new storage yet.
                await asyncio.sleep(_RETRY)
            else:
                self.losses += 1
                self._has_lost_all = True

    async def _is_full(self, contents: Contents) -> bool:
        """Store what is missing. Return False if something could not be stored, which is counted (`unkept`)."""
        try:
            if self._has_lost_all:
                self._unkept = set(contents())
                self._has_lost_all = False
            await self.keep_all(lambda: {name: fds for name, fds in contents().items() if name in self._unkept})
        except (UnavailableError, OSError):
            # It was lost again at once, or there are no descriptors for a bundle.
            return False
        return True

    async def keep_all(self, contents: Contents) -> None:
        """Store everything. Bundles created meanwhile are stored by the operation that creates them."""
        for name in contents():
            # Look again each time: the bundle may have been removed or changed meanwhile.
            fds = contents().get(name)
            if fds is not None:
                await self.keep(name, fds)

    async def settle(self) -> None:
        """Wait until no task is running."""
        await self._tasks.settle()
        # On a thread, because the driver may take arbitrarily long to close GPU memory.
        await asyncio.to_thread(self._closer.drain, 10.0)

    async def close(self) -> None:
        """Finish running tasks and disconnect from the storage."""
        try:
            await self.settle()
        finally:
            await self._storage.close()
            self._closer.close()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that `settle` waits for."""
        return self._tasks.spawn(work)
