"""Connects the vault to its storage: packs bundles, removes them in the background, and refills a lost storage."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.descriptors.fd_closer import FdCloser
from mpsguard.tasks import TaskSet
from mpsguard.vault.errors import UnavailableError
from mpsguard.vault.fd_storage.storage import FdStorage

T = TypeVar("T")

Contents = Callable[[], dict[str, tuple[int, ...]]]
"""Returns what should be stored at this moment: the descriptors of each bundle by name."""


class BackgroundStorage:
    """Owns the storage, the tasks that use it, and the thread that closes descriptors."""

    def __init__(self, storage: FdStorage) -> None:
        self._storage = storage
        self._tasks = TaskSet()
        self._unkept: set[str] = set()
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
            try:
                await self._storage.lost()
                self.losses += 1
                self._unkept = set(contents())
                await self.keep_all(contents)
            except UnavailableError:
                # There is no new storage yet, or it was lost at once. Missing bundles are counted (`unkept`).
                await asyncio.sleep(1.0)

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
        await self.settle()
        await self._storage.close()
        self._closer.close()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that `settle` waits for."""
        return self._tasks.spawn(work)
