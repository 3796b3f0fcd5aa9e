"""Owns the memory of the tiers; what is held, loaded and evicted is decided by `tiers`."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum, auto
from itertools import islice
from typing import Final

from mpsguard.images.pool import tiers
from mpsguard.images.pool.arena import Arena
from mpsguard.images.pool.arena_slots import Run
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.messages import ImageInTier, PoolListing
from mpsguard.images.pool.metrics import PoolMetrics, TierResult
from mpsguard.images.pool.store_threads import StoreThreads
from mpsguard.images.pool.tiers import Tier, TierState
from mpsguard.images.store.errors import ImageError
from mpsguard.linux.descriptors.fd_closer import FdCloser
from mpsguard.linux.tasks import Owner, report_defect

LoadInto = Callable[[list[memoryview], threading.Event], None]
"""Reads an image into the arena's slots; on a thread, until the event is set. Raises ImageError or PoolError."""
Load = Callable[[threading.Event], int]
"""Returns a descriptor of an image in host memory; on a thread, until the event is set. Raises ImageError
or PoolError."""
_PATIENCE: Final = 5.0
"""Seconds in which a load ends after it should."""


class _End(Enum):
    """How an arrival ended that has no error of its own."""

    ARRIVED = auto()
    LEFT = auto()
    """The process that was to fill it has not."""


class TierOwner:
    """Owns a descriptor for each image in host memory, those of each image in GPU memory, and the pinned arena."""

    def __init__(self, budgets: Mapping[Tier, int], metrics: PoolMetrics) -> None:
        """Begin with nothing in any tier.

        Args:
            budgets: bytes of each tier; a tier without one holds nothing.
            metrics: what is counted.

        Raises:
            PoolError: there is no memory for the arena.
        """
        pinned = budgets.get(Tier.PINNED, 0)
        self.arena: Final = Arena(pinned) if pinned else None
        """None if nothing is to be pinned."""
        self._metrics: Final = metrics
        self._runs: dict[str, tuple[Run, ...]] = {}
        self._states = {tier: TierState(budgets.get(tier, 0)) for tier in Tier}
        self._fds: dict[tuple[Tier, str], tuple[int, ...]] = {}
        self._arrivals: dict[tuple[Tier, str], asyncio.Future[_End | str]] = {}
        self._sources: dict[tuple[Tier, str], str] = {}
        """Of images that are loaded: the store that they come from."""
        self._loads: Final = Owner()
        self._threads: Final = StoreThreads("load")
        self._stop: Final = threading.Event()
        self._taken_up: asyncio.Task[None] | None = None
        self._closer: Final = FdCloser()

    async def hold_in_host(self, key: str, size: int, store: str, load: Load) -> int:
        """Hold an image in host memory, loaded once for all that wait for it; release it later.

        Args:
            key: of the image.
            size: bytes that it takes up.
            store: path of the store that it is loaded from.
            load: how.

        Returns:
            A descriptor, which stays owned by this object.

        Raises:
            PoolError: there is no room, or it cannot be loaded.
        """
        while True:
            if self._request(Tier.HOST, key, size):
                self._sources[Tier.HOST, key] = store
                self._loads.spawn(self._load(key, store, load))
            if await self._loaded(Tier.HOST, key, store):
                return self._fds[Tier.HOST, key][0]

    async def hold_pinned(self, key: str, size: int, store: str, load: LoadInto) -> tuple[Run, ...]:
        """Hold an image in the arena, loaded once for all that wait for it; release it later.

        Args: as for `hold_in_host`.

        Returns:
            The slots of its pieces, in their order.

        Raises:
            PoolError: there is no room, or it cannot be loaded.
        """
        while True:
            if self._request(Tier.PINNED, key, size):
                self._begin_pinned(key, size, store, load)
            if await self._loaded(Tier.PINNED, key, store):
                return self._runs[key]

    async def hold_on_gpu(self, key: str, size: int) -> tuple[int, ...] | None:
        """Hold an image in GPU memory; release it later.

        Returns:
            Descriptors, which stay owned by this object; None if the caller has to `fill` it, or to call `abandon`.

        Raises:
            PoolError: there is no room.
        """
        while True:
            if self._request(Tier.GPU, key, size):
                return None
            if await self._arrival(Tier.GPU, key) is _End.ARRIVED:
                return self._fds[Tier.GPU, key]

    def fill(self, key: str, fds: tuple[int, ...]) -> None:
        """Take ownership of the descriptors of an image that the caller was to fill."""
        self._arrived(Tier.GPU, key, fds)

    def abandon(self, key: str) -> None:
        """End the use of an image that the caller was to fill: the next one that wants it has to."""
        self._failed(Tier.GPU, key, _End.LEFT)

    async def open_arena(self) -> Arena | None:
        """Return the arena for a program that is about to pin it; None if nothing is to be pinned.

        The first call waits until its memory is taken up.
        """
        arena = self.arena
        if arena is not None:
            if self._taken_up is None:
                self._taken_up = self._loads.spawn(self._take_up(arena))
            await asyncio.shield(self._taken_up)
        return arena

    async def _take_up(self, arena: Arena) -> None:
        # No thread, or no descriptor: it is pinned as it is. This is the outcome of all later calls, too.
        with suppress(RuntimeError, OSError):
            await asyncio.to_thread(arena.make_huge, self._stop)

    def size_of(self, key: str) -> int | None:
        """Return the bytes that an image takes up; None if no tier has it, or is about to."""
        found = (state.image(key) for state in self._states.values())
        return next((image.size for image in found if image is not None), None)

    def release(self, tier: Tier, key: str) -> None:
        """End one use of an image, which stays until its room is needed."""
        self._states[tier] = tiers.release(self._states[tier], key)

    def listing(self, start: int = 0, most: int | None = None) -> PoolListing:
        """Return what the tiers hold, without the first ``start`` images, and ``most`` of the others."""
        images = (
            ImageInTier(image.key, tier, image.size, image.uses, image.whole)
            for tier, state in self._states.items()
            for image in state.images
        )
        budgets = {tier: state.budget for tier, state in self._states.items()}
        return PoolListing(tuple(islice(images, start, None if most is None else start + most)), budgets)

    async def close(self) -> bool:
        """End all loading, and give the memory back; no image may be held or waited for any more.

        Returns:
            Whether all loading has ended; otherwise a store does not answer, and threads keep the process from ending.
        """
        self._stop.set()
        ended = await self._loads.settle(_PATIENCE)
        self._threads.close(0.0)
        for fds in self._fds.values():
            self._closer.take(fds)
        self._fds.clear()
        self._closer.close()
        if self.arena is not None:
            self.arena.close()
        return ended

    def _request(self, tier: Tier, key: str, size: int) -> bool:
        """Count a use; return whether the image has to be brought there."""
        decision = tiers.request(self._states[tier], key, size)
        if decision.refusal is not None:
            self._metrics.requested(tier, TierResult.REFUSED)
            raise PoolError(f"tier {tier}: {decision.refusal}")
        self._metrics.requested(tier, TierResult.MISS if decision.load else TierResult.HIT)
        for evicted in decision.evicted:
            self._metrics.evicted(tier)
            self._drop(tier, evicted)
        if decision.load:
            self._arrivals[tier, key] = asyncio.get_running_loop().create_future()
        self._states[tier] = decision.state
        return decision.load

    def _begin_pinned(self, key: str, size: int, store: str, load: LoadInto) -> None:
        arena = self.arena
        assert arena is not None
        try:
            runs = self._runs[key] = arena.take(size)
        except PoolError as error:
            self._failed(Tier.PINNED, key, str(error))
            raise
        self._sources[Tier.PINNED, key] = store
        self._loads.spawn(self._load_pinned(key, store, arena.places(runs), load))

    async def _loaded(self, tier: Tier, key: str, store: str) -> bool:
        """Wait for an image after its use was counted.

        Returns:
            False if it did not come from another store: then nothing is counted, and ``store`` may have it.

        Raises:
            PoolError: it could not be loaded from ``store``.
        """
        source = self._sources.get((tier, key))
        end = await self._arrival(tier, key)
        if not isinstance(end, str):
            return True
        if source == store:
            raise PoolError(end)
        return False

    async def _arrival(self, tier: Tier, key: str) -> _End | str:
        """Wait for an image after its use was counted; the use ends if the caller is cancelled."""
        arrival = self._arrivals.get((tier, key))
        if arrival is None:
            return _End.ARRIVED
        try:
            return await asyncio.shield(arrival)
        except asyncio.CancelledError:
            # After a failure no use is counted any more.
            if not arrival.done() or arrival.result() is _End.ARRIVED:
                self.release(tier, key)
            raise

    def _drop(self, tier: Tier, key: str) -> None:
        """Give back what an image takes up in a tier, if it does yet."""
        self._closer.take(self._fds.pop((tier, key), ()))
        if tier is Tier.PINNED and self.arena is not None:
            self.arena.give(self._runs.pop(key, ()))

    async def _load_pinned(self, key: str, store: str, slots: list[memoryview], load: LoadInto) -> None:
        try:
            await self._threads.run(store, lambda: load(slots, self._stop))
        except Exception as error:
            self._load_failed(Tier.PINNED, key, error)
        else:
            self._arrived(Tier.PINNED, key, ())

    async def _load(self, key: str, store: str, load: Load) -> None:
        try:
            fd = await self._threads.run(store, lambda: load(self._stop))
        except Exception as error:
            self._load_failed(Tier.HOST, key, error)
        else:
            self._arrived(Tier.HOST, key, (fd,))

    def _arrived(self, tier: Tier, key: str, fds: tuple[int, ...]) -> None:
        self._fds[tier, key] = fds
        self._states[tier] = tiers.arrived(self._states[tier], key)
        self._sources.pop((tier, key), None)
        self._arrivals.pop((tier, key)).set_result(_End.ARRIVED)

    def _load_failed(self, tier: Tier, key: str, error: Exception) -> None:
        if isinstance(error, ImageError | PoolError):
            self._failed(tier, key, str(error))
        else:
            # A fault of ours must not leave those waiting that want the image.
            report_defect(f"load of an image into tier {tier}", error)
            self._failed(tier, key, f"{type(error).__name__}: {error}")

    def _failed(self, tier: Tier, key: str, end: _End | str) -> None:
        self._states[tier] = tiers.failed(self._states[tier], key)
        self._drop(tier, key)
        self._sources.pop((tier, key), None)
        self._arrivals.pop((tier, key)).set_result(end)
