"""The arena's memory, as the kernel sees it."""

import asyncio
from pathlib import Path

import pytest

from mpsguard.images.pool.arena import Arena
from mpsguard.images.pool.metrics import PoolMetrics
from mpsguard.images.pool.tier_owner import TierOwner
from mpsguard.images.pool.tiers import Tier
from tests.harness.smaps import smaps

_MIB = 1 << 20


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this kernel has no transparent huge pages"
)
def test_an_arena_asks_for_large_pages() -> None:
    arena = Arena(4 * _MIB)
    try:
        assert "hg" in {flag for flags in smaps("mpsguard-arena", "VmFlags") for flag in flags}
    finally:
        arena.close()


def test_an_arena_that_cannot_be_taken_up_is_opened_as_it_is() -> None:
    async def opened() -> None:
        owner = TierOwner({Tier.PINNED: 4 * _MIB}, PoolMetrics())
        arena = owner.arena
        assert arena is not None
        # As when the process has no descriptor left.
        fd, arena._fd = arena._fd, -1
        assert await owner.open_arena() is arena
        arena._fd = fd
        assert await owner.open_arena() is arena
        assert await owner.close()

    asyncio.run(asyncio.wait_for(opened(), 30))
