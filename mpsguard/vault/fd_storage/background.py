"""Between the vault and its keeper: packs parcels, forgets in the background, and gives all of it to a new keeper."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from mpsguard.linux import fd_bundle
from mpsguard.linux.fd_closer import FdCloser
from mpsguard.tasks import TaskSet
from mpsguard.vault.errors import UnavailableError
from mpsguard.vault.fd_storage.storage import FdStorage

T = TypeVar("T")

Contents = Callable[[], dict[str, tuple[int, ...]]]
"""What is there to be kept at this moment: names of parcels, and the descriptors in them."""


class BackgroundStorage:
    """Owns the keeper, the tasks that talk to it, and the thread on which descriptors are closed."""

    def __init__(self, keeper: FdStorage) -> None:
        self._keeper = keeper
        self._tasks = TaskSet()
        self._unkept: set[str] = set()
        self.losses = 0
        """Keepers that were lost with all they had."""
        self._disposal = FdCloser()

    @property
    def unkept(self) -> int:
        """Parcels that should be with the keeper and are not."""
        return len(self._unkept)

    async def keep(self, name: str, fds: Sequence[int]) -> None:
        """Return when copies of ``fds`` are safe; UnavailableError if they are not."""
        try:
            parcel = fd_bundle.pack(name.encode(), fds)
        except OSError as error:
            raise UnavailableError(f"{len(fds)} descriptors cannot be kept: {error.strerror}") from None
        await self._keeper.keep(name, parcel)
        self._unkept.discard(name)

    def forget(self, name: str) -> None:
        """Have the keeper forget a parcel, some time soon."""
        self.spawn(self.unkeep(name))

    async def unkeep(self, name: str) -> None:
        """The same as `forget`, and return when it is done."""
        self._unkept.discard(name)
        with suppress(UnavailableError):
            await self._keeper.forget(name)

    def dispose(self, fds: Sequence[int]) -> None:
        """Close descriptors of memory, some time soon."""
        self._disposal.take(fds)

    async def watch(self, contents: Contents) -> None:
        """Whenever the keeper is lost, give its successor everything; until cancelled."""
        while True:
            try:
                await self._keeper.lost()
                self.losses += 1
                self._unkept = set(contents())
                await self.keep_all(contents)
            except UnavailableError:
                # There is no successor yet, or it went at once. What is missing is counted (`unkept`).
                await asyncio.sleep(1.0)

    async def keep_all(self, contents: Contents) -> None:
        """Give the keeper everything; what comes meanwhile is given to it by whoever brings it."""
        for name in contents():
            # Asked again each time: it may have gone meanwhile, and its descriptors may be others now.
            fds = contents().get(name)
            if fds is not None:
                await self.keep(name, fds)

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        await self._tasks.settle()
        # On a thread: closing GPU memory may take as long as the driver likes.
        await asyncio.to_thread(self._disposal.drain, 10.0)

    async def close(self) -> None:
        """Finish what is under way and let go of the keeper."""
        await self.settle()
        await self._keeper.close()
        self._disposal.close()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have something done that the end waits for (`settle`)."""
        return self._tasks.spawn(work)
