"""Which command is next: the guard's own before all, then one of each user."""

import asyncio

import pytest

from mpsguard.guard.lanes.command import MAX_OF_A_USER, MAX_OF_USERS, MAX_OWN, CommandQueue, QueueFullError


def test_the_guards_own_go_first_and_users_take_turns() -> None:
    queue: CommandQueue[str] = CommandQueue()
    for owner, entry in ((1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (None, "own"), (2, "b2")):
        queue.put(owner, entry)
    assert [queue.take() for _ in range(7)] == ["own", "a1", "b1", "a2", "b2", "a3", None]


def test_each_has_a_share_and_a_user_without_one_is_always_heard() -> None:
    queue: CommandQueue[int] = CommandQueue()
    users = MAX_OF_USERS // MAX_OF_A_USER
    for uid in range(users):
        for entry in range(MAX_OF_A_USER):
            queue.put(uid, entry)
        with pytest.raises(QueueFullError, match="of this user"):
            queue.put(uid, 0)
    queue.put(users, 1)
    with pytest.raises(QueueFullError, match=str(MAX_OF_USERS)):
        queue.put(users, 2)
    for entry in range(MAX_OWN):
        queue.put(None, entry)
    with pytest.raises(QueueFullError):
        queue.put(None, 0)


def test_getting_waits_for_the_next() -> None:
    async def scenario() -> None:
        queue: CommandQueue[str] = CommandQueue()
        async with asyncio.timeout(30):
            getting = asyncio.create_task(queue.get())
            await asyncio.sleep(0)
            queue.put(7, "late")
            assert await getting == "late"

    asyncio.run(scenario())
