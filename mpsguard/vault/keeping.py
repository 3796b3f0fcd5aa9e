"""Between the vault and its keeper: packs parcels, forgets in the background, and gives all of it to a new keeper."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from mpsguard.linux import fd_parcel
from mpsguard.linux.disposal import Disposal
from mpsguard.vault.errors import UnavailableError
from mpsguard.vault.keeper import Keeper

Contents = Callable[[], dict[str, tuple[int, ...]]]
"""What is there to be kept at this moment: names of parcels, and the descriptors in them."""


class Keeping:
    """Owns the keeper, the tasks that talk to it, and the thread on which descriptors are closed."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._tasks: set[asyncio.Task[None]] = set()
        self._unkept: set[str] = set()
        self._disposal = Disposal()

    @property
    def unkept(self) -> int:
        """Parcels that should be with the keeper and are not."""
        return len(self._unkept)

    async def keep(self, name: str, fds: Sequence[int]) -> None:
        """Return when copies of ``fds`` are safe; UnavailableError if they are not."""
        try:
            parcel = fd_parcel.pack(name.encode(), fds)
        except OSError as error:
            raise UnavailableError(f"{len(fds)} descriptors cannot be kept: {error.strerror}") from None
        await self._keeper.keep(name, parcel)
        self._unkept.discard(name)

    def forget(self, name: str) -> None:
        """Have the keeper forget a parcel, some time soon."""
        self._unkept.discard(name)
        self._spawn(self._keeper.forget(name))

    def dispose(self, fds: Sequence[int]) -> None:
        """Close descriptors of memory, some time soon."""
        self._disposal.take(fds)

    async def watch(self, contents: Contents) -> None:
        """Whenever the keeper is lost, give its successor everything; until cancelled."""
        while True:
            try:
                await self._keeper.lost()
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
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        # On a thread: closing GPU memory may take as long as the driver likes.
        await asyncio.to_thread(self._disposal.drain, 10.0)

    async def close(self) -> None:
        """Finish what is under way and let go of the keeper."""
        await self.settle()
        await self._keeper.close()
        self._disposal.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def done() -> None:
            with suppress(UnavailableError):
                await work

        task = asyncio.create_task(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
