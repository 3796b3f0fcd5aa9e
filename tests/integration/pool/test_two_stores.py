"""One image in two stores: damage of the one is no matter of programs that use the other."""

import asyncio
import os
import threading
from collections.abc import Callable

import pytest

from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.metrics import PoolMetrics
from mpsguard.images.pool.tier_owner import TierOwner
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.store.errors import DamagedError

KEY, SIZE = "0" * 64, 2 << 20


async def held_twice(hold: Callable[[TierOwner, str, Callable[[], int]], asyncio.Task[object]]) -> None:
    """Have a load from a bad store fail while a program waits for it that named a good one."""
    owner = TierOwner({Tier.HOST: 2 * SIZE, Tier.PINNED: 2 * SIZE}, PoolMetrics())
    damaged = threading.Event()

    def bad() -> int:
        assert damaged.wait(30)
        raise DamagedError("a piece is damaged")

    def good() -> int:
        return os.memfd_create("image")

    tasks = [hold(owner, store, load) for store, load in (("/bad", bad), ("/good", good), ("/bad", bad))]
    while len(owner.listing().images) != 1 or owner.listing().images[0].uses != 3:
        await asyncio.sleep(0)
    damaged.set()
    for task in (tasks[0], tasks[2]):
        with pytest.raises(PoolError, match="damaged"):
            await task
    await tasks[1]
    assert [(image.uses, image.whole) for image in owner.listing().images] == [(1, True)]
    await owner.close()


def test_host_memory() -> None:
    def hold(owner: TierOwner, store: str, load: Callable[[], int]) -> asyncio.Task[object]:
        return asyncio.create_task(owner.hold_in_host(KEY, SIZE, store, lambda _: load()))

    asyncio.run(asyncio.wait_for(held_twice(hold), 30))


def test_pinned_memory() -> None:
    def hold(owner: TierOwner, store: str, load: Callable[[], int]) -> asyncio.Task[object]:
        return asyncio.create_task(owner.hold_pinned(KEY, SIZE, store, lambda _slots, _stop: os.close(load())))

    asyncio.run(asyncio.wait_for(held_twice(hold), 30))
