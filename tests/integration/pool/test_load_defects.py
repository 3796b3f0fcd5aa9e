"""A load fails as nothing expects: programs that wait for it are told, and the pool's log has the traceback."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.metrics import PoolMetrics
from mpsguard.images.pool.tier_owner import TierOwner
from mpsguard.images.pool.tiers import Tier

KEY, SIZE = "0" * 64, 2 << 20


def defective(*_: object) -> NoReturn:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "hold",
    [
        lambda owner: owner.hold_in_host(KEY, SIZE, "/store", defective),
        lambda owner: owner.hold_pinned(KEY, SIZE, "/store", defective),
    ],
    ids=["host", "pinned"],
)
def test_the_exception_is_reported_once(hold: Callable[[TierOwner], Awaitable[object]]) -> None:
    async def body() -> list[dict[str, Any]]:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        owner = TierOwner({Tier.HOST: SIZE, Tier.PINNED: SIZE}, PoolMetrics())
        first, second = await asyncio.gather(hold(owner), hold(owner), return_exceptions=True)
        assert isinstance(first, PoolError)
        assert isinstance(second, PoolError)
        assert owner.listing().images == ()
        await owner.close()
        return reported

    (report,) = asyncio.run(asyncio.wait_for(body(), 30.0))
    assert isinstance(report["exception"], ZeroDivisionError)
