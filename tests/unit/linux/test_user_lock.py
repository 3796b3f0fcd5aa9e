"""The order in which users get a lock: one of each in turn."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from mpsguard.linux.user_lock import UserLock

CROWD, LONE = 1, 2


async def take(lock: UserLock[int], uid: int, order: list[int]) -> None:
    async with lock.held(uid):
        order.append(uid)
        await asyncio.sleep(0)


def test_a_crowd_does_not_come_before_another_users_first() -> None:
    order: list[int] = []

    async def run() -> None:
        lock = UserLock[int]()
        tasks = [asyncio.create_task(take(lock, CROWD, order)) for _ in range(100)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(take(lock, LONE, order)))
        await asyncio.wait_for(asyncio.gather(*tasks), 30)

    asyncio.run(run())
    assert len(order) == 101
    assert order.index(LONE) <= 3


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=30), st.integers(0, 12))
def test_each_that_stays_gets_it_alone_and_it_is_free_at_the_end(waiters: list[tuple[int, bool]], turns: int) -> None:
    order: list[int] = []
    inside = 0

    async def alone(lock: UserLock[int], uid: int) -> None:
        nonlocal inside
        async with lock.held(uid):
            inside += 1
            try:
                assert inside == 1
                await asyncio.sleep(0)
                order.append(uid)
            finally:
                inside -= 1

    async def run() -> None:
        lock = UserLock[int]()
        tasks = [asyncio.create_task(alone(lock, uid)) for uid, _ in waiters]
        for _ in range(turns):
            await asyncio.sleep(0)
        leaving = [task for task, (_, leaves) in zip(tasks, waiters, strict=True) if leaves]
        for task in leaving:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert all(task.cancelled() or task.exception() is None or task in leaving for task in tasks)
        async with asyncio.timeout(30):
            async with lock.held(9):
                pass

    asyncio.run(run())
    assert len(order) >= sum(not leaves for _, leaves in waiters)
