"""What bounds the broker: which connection gives way when too many come."""

import asyncio
import time
from collections.abc import Callable

import pytest

from mpsguard.guard.broker.arrivals import Arrivals
from mpsguard.guard.broker.connection_table import ConnectionTable


def with_connections(
    limit: int, owners: list[int], clock: Callable[[], float] = time.monotonic
) -> tuple[ConnectionTable, list[asyncio.Task[None]]]:
    table = ConnectionTable(limit, clock)
    tasks = []
    for uid in owners:
        task = asyncio.create_task(asyncio.sleep(3600))
        table.add(task, uid)
        tasks.append(task)
    return table, tasks


def run(scenario: object) -> None:
    assert asyncio.iscoroutine(scenario)
    asyncio.run(scenario)


def test_the_longest_silent_of_the_heaviest_user_gives_way() -> None:
    async def scenario() -> None:
        table, tasks = with_connections(6, [7, 1, 2, 7, 7, 2])
        table.mark_active(tasks[0])
        assert table.make_room(0) is tasks[3]
        await table.close(0)

    run(scenario())


def test_a_user_over_its_share_makes_room_from_its_own() -> None:
    async def scenario() -> None:
        table, tasks = with_connections(10, [3, 5, 5, 5, 5, 5])
        assert table.make_room(5) is tasks[1]
        assert table.make_room(3) is None
        await table.close(0)

    run(scenario())


def test_connections_that_have_spoken_stay_and_the_newcomer_is_turned_away() -> None:
    async def scenario() -> None:
        table, tasks = with_connections(3, [0, 0, 0])
        for task in tasks:
            table.mark_active(task)
        with pytest.raises(LookupError):
            table.make_room(0)
        await table.close(0)
        assert len(table) == 0
        assert all(task.cancelled() for task in tasks)

    run(scenario())


def test_a_finished_connection_leaves_the_table() -> None:
    async def scenario() -> None:
        table, tasks = with_connections(2, [0, 0])
        table.evict(tasks[0])
        assert len(table) == 1
        await asyncio.wait({tasks[0]})
        assert len(table) == 1
        assert table.make_room(0) is None
        await table.close(0)

    run(scenario())


def test_three_users_cannot_hold_every_place_and_some_are_roots_alone() -> None:
    async def scenario() -> None:
        table, tasks = with_connections(64, [1] * 15 + [2] * 16 + [3] * 16 + [4] * 13)
        for task in tasks:
            table.mark_active(task)
        # Sixty are held: four are left, which are root's.
        assert table.make_room(0) is None
        with pytest.raises(LookupError):
            table.make_room(3)
        # All have spoken, and none wants nothing: the newest of a heaviest user gives way to a user that has fewer.
        assert table.make_room(5) is tasks[30]
        # One that waits for its user gives way to a user that has less.
        table.mark_idle(tasks[20])
        assert table.make_room(5) is tasks[20]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run(scenario())


def test_few_of_a_user_may_be_silent_and_the_longest_makes_room_once_it_had_its_time() -> None:
    async def scenario() -> None:
        now = 0.0
        table, tasks = with_connections(4096, [5] * 16, lambda: now)
        assert not table.may_come(5)
        assert table.may_come(6)
        assert table.may_come(0)
        table.mark_active(tasks[0])
        assert table.may_come(5)
        table.mark_idle(tasks[0])
        assert not table.may_come(5)
        now = 1.5
        assert table.may_come(5)
        assert table.make_room(5) is tasks[1]
        table.evict(tasks[1])
        again = asyncio.create_task(asyncio.sleep(60))
        table.add(again, 5)
        assert not table.may_come(5), "one after the other"
        now = 1.5625 + 0.001
        assert table.may_come(5)
        assert table.make_room(5) is tasks[2]
        await table.close(0)

    run(scenario())


def test_each_user_that_may_has_one_arrival_taken_a_turn() -> None:
    arrivals: Arrivals[str] = Arrivals(3, 100)
    assert [arrivals.add(1, name) for name in "abcd"] == [None, None, None, "a"]
    arrivals.add(2, "x")
    arrivals.add(3, "y")
    assert arrivals.turn(lambda uid: uid != 3) == ["b", "x"]
    assert arrivals.turn(lambda uid: uid != 3) == ["c"]
    assert len(arrivals) == 2
    assert arrivals.clear() == ["d", "y"]
    assert arrivals.turn(lambda _: True) == []


def test_when_all_lines_are_full_the_longest_is_cut() -> None:
    arrivals: Arrivals[str] = Arrivals(3, 6)
    assert [arrivals.add(1, name) for name in ("a1", "a2", "a3")] == [None, None, None]
    assert [arrivals.add(uid, f"b{uid}") for uid in (2, 3, 4)] == [None, None, None]
    assert arrivals.add(5, "b5") == "a1"
    assert arrivals.add(6, "b6") == "a2"
    assert len(arrivals) == 6
    assert arrivals.turn(lambda _: True) == ["a3", "b2", "b3", "b4", "b5", "b6"]
    assert len(arrivals) == 0


def test_of_users_that_have_more_than_a_few_arrivals_the_first_are_surplus() -> None:
    arrivals: Arrivals[str] = Arrivals(10, 100)
    for uid, names in ((1, "abcde"), (2, "vwxyz"), (3, "n")):
        for name in names:
            arrivals.add(uid, name)
    assert arrivals.surplus(2, 2) == ["a", "b", "v", "w"]
    assert arrivals.surplus(2, 2) == ["c", "x"]
    assert arrivals.surplus(2, 2) == []
    assert arrivals.clear() == ["d", "e", "y", "z", "n"]


def test_arrivals_that_have_left_are_dropped_from_the_head_of_each_queue() -> None:
    arrivals: Arrivals[str] = Arrivals(10, 100)
    for uid, names in ((1, ("gone", "gone", "here", "gone")), (2, ("gone",)), (3, ("here",))):
        for name in names:
            arrivals.add(uid, name)
    assert arrivals.drop(lambda name: name == "gone", 1) == ["gone", "gone"]
    assert arrivals.drop(lambda name: name == "gone", 8) == ["gone"]
    assert len(arrivals) == 3
    assert arrivals.turn(lambda _: True) == ["here", "here"]
    assert arrivals.drop(lambda name: name == "gone", 8) == ["gone"]
    assert arrivals.turn(lambda _: True) == []
    assert len(arrivals) == 0
