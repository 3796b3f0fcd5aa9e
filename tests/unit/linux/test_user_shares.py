"""Queue, share, lock and budget of users: no user starves, no total is exceeded, each place comes back once."""

import asyncio
import threading
from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsguard.linux.side_threads import NoTurnError, SharedThreads
from mpsguard.linux.user_budget import UserBudget
from mpsguard.linux.user_lock import UserLock
from mpsguard.linux.user_queue import Ticket, UserQueue
from mpsguard.linux.user_share import Place, Room, UserShare
from tests.harness.waiting import PATIENCE

ROOT = 0
USERS = st.integers(0, 4)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "take", "withdraw", "last", "first"]), USERS), max_size=80))
def test_a_queue_is_in_order_of_coming_for_each_user_and_fair_between_users(steps: list[tuple[str, int]]) -> None:
    queue: UserQueue[int, int] = UserQueue()
    model: dict[int, list[tuple[int, Ticket[int]]]] = {}
    passed_over: Counter[int] = Counter()
    for number, (step, user) in enumerate(steps):
        line = model.setdefault(user, [])
        if step == "add":
            line.append((number, queue.add(user, number)))
        elif step == "take":
            waiting = {each for each in model if model[each]}
            found = queue.take()
            assert (found is None) == (not waiting)
            if found is not None:
                served, entry = found
                assert model[served].pop(0)[0] == entry
                passed_over = Counter({each: passed_over[each] + 1 for each in waiting if each != served})
                # Each of the others at most once.
                assert max(passed_over.values(), default=0) <= 4
        elif line:
            entry, ticket = line.pop(0 if step == "first" else -1)
            if step == "withdraw":
                assert queue.withdraw(ticket)
                assert not queue.withdraw(ticket)
            else:
                assert (queue.pop_first(user) if step == "first" else queue.pop_last(user)) == entry
        assert len(queue) == sum(map(len, model.values()))
        assert [queue.of(each) for each in model] == [len(line) for line in model.values()]
        if len(queue):
            assert queue.of(queue.heaviest()) == max(map(len, model.values()))
    assert sorted(queue.clear()) == sorted(number for line in model.values() for number, _ in line)
    assert (len(queue), queue.take()) == (0, None)


@settings(deadline=None)
@given(st.sets(USERS), st.lists(USERS, min_size=1))
def test_a_user_that_may_not_is_passed_over_and_keeps_its_turn(blocked: set[int], users: list[int]) -> None:
    queue: UserQueue[int, int] = UserQueue()
    for number, user in enumerate(users):
        queue.add(user, number)
    first_come = [user for user in dict.fromkeys(users) if user not in blocked]
    served = [queue.take(lambda user: user not in blocked) for _ in first_come]
    assert [each[0] for each in served if each is not None] == first_come
    assert [user for user in queue.users() if user in blocked] == [u for u in dict.fromkeys(users) if u in blocked]


def test_a_key_of_a_user_is_whatever_can_be_hashed() -> None:
    queue: UserQueue[Hashable, str] = UserQueue()
    share: UserShare[Hashable] = UserShare(2, 1)
    for user in (0, ("pod", "a"), None):
        queue.add(user, str(user))
    assert [queue.take() for _ in range(3)] == [(0, "0"), (("pod", "a"), "('pod', 'a')"), (None, "None")]
    assert share.take(("pod", "a")) is not None
    assert share.take(("pod", "a")) is None
    assert share.take(0) is not None


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(["take", "back", "again", "exceed"]), USERS, st.integers(1, 3)), max_size=80),
)
def test_no_total_is_exceeded_and_each_place_comes_back_once(
    most: int, of_a_user: int, reserved: int, steps: list[tuple[str, int, int]]
) -> None:
    reserved = min(reserved, most)
    returns = 0

    def returned() -> None:
        nonlocal returns
        returns += 1

    share: UserShare[int] = UserShare(most, of_a_user, privileged=(ROOT,), reserved=reserved, returned=returned)
    places: list[tuple[int, int, Place]] = []
    past: list[Place] = []
    exceeded = False
    for step, user, count in steps:
        if step == "take":
            room = share.room(user)
            place = share.take(user, count)
            if count == 1:
                assert (place is not None) == (room is Room.FREE)
            if place is not None:
                places.append((user, count, place))
        elif step == "exceed":
            places.append((user, count, share.exceed(user, count)))
            exceeded = True
        elif step == "back" and places:
            _, _, place = places.pop(0)
            place.give_back()
            past.append(place)
        elif past:
            past[-1].give_back()
        held = Counter[int]()
        for owner, number, _ in places:
            held[owner] += number
        assert {user: share.held(user) for user in range(5)} == {user: held[user] for user in range(5)}
        assert len(share) == held.total()
        if not exceeded:
            assert held.total() <= most
            assert held.total() - held[ROOT] <= most - reserved
            assert all(held[user] <= of_a_user for user in held if user != ROOT)
        heavier = share.heavier(user)
        if heavier is not None:
            assert held[heavier] > held[user] + 1
            assert held[heavier] >= max(held[each] for each in held if each != ROOT or held[ROOT] > reserved)
    for _, _, place in places:
        place.give_back()
        place.give_back()
    assert (len(share), share.heaviest()) == (0, None)
    assert returns == len(past) + len(places)


def test_a_user_without_places_finds_one_where_the_heaviest_gives_way() -> None:
    share: UserShare[int] = UserShare(6, 4)
    held = {user: [share.take(user) for _ in range(3)] for user in (1, 2)}
    assert share.room(3) is Room.NONE
    giver = share.heavier(3)
    assert giver == 1
    place = held[giver].pop()
    assert place is not None
    place.give_back()
    assert share.take(3) is not None
    # Each has two or more now: to a user that would have as many then, none gives way.
    assert share.heavier(1) is None


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 8))
def test_a_place_that_threads_give_back_at_once_is_counted_once(threads: int) -> None:
    share: UserShare[int] = UserShare(1)
    place = share.take(1)
    assert place is not None
    together = threading.Barrier(threads)

    def give_back() -> None:
        together.wait(PATIENCE)
        place.give_back()

    givers = [threading.Thread(target=give_back) for _ in range(threads)]
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join(PATIENCE)
    assert len(share) == 0
    assert share.take(1) is not None
    assert share.take(1) is None


WAITERS = st.lists(st.tuples(USERS, st.integers(0, 4), st.sampled_from(["stays", "cancelled", "fails"])), max_size=40)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), WAITERS)
def test_a_lock_loses_no_place_however_its_waiters_end(most: int, waiters: list[tuple[int, int, str]]) -> None:
    async def scenario() -> None:
        lock: UserLock[int] = UserLock(most)
        inside = 0
        served: list[int] = []

        async def waiter(user: int, passes: int, end: str) -> None:
            nonlocal inside
            async with lock.held(user):
                inside += 1
                try:
                    assert inside <= most
                    for _ in range(passes):
                        await asyncio.sleep(0)
                    served.append(user)
                    if end == "fails":
                        raise ValueError
                finally:
                    inside -= 1

        tasks = [asyncio.create_task(waiter(*each)) for each in waiters]
        for task, (user, _, end) in zip(tasks, waiters, strict=True):
            if end == "cancelled":
                for _ in range(user):
                    await asyncio.sleep(0)
                task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [each for each in ended if isinstance(each, AssertionError)]
        assert len(served) >= sum(end != "cancelled" for _, _, end in waiters)
        # All places are there again.
        places = [await lock.acquire(user) for user in range(most)]
        waiting = asyncio.create_task(lock.acquire(9))
        await asyncio.sleep(0)
        assert not waiting.done()
        places[0].give_back()
        (await waiting).give_back()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


JOBS = st.lists(st.tuples(USERS, st.sampled_from(["stays", "cancelled", "fails", "impatient"])), max_size=25)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 2), JOBS)
def test_threads_keep_a_place_until_the_job_ends_and_give_it_back_on_every_path(
    most: int, of_a_user: int, jobs: list[tuple[int, str]]
) -> None:
    async def scenario() -> None:
        threads: SharedThreads[int] = SharedThreads("shared", most, of_a_user)
        counting = threading.Lock()
        working: Counter[int] = Counter()
        go = threading.Event()
        too_many = False

        def work(user: int, end: str) -> int:
            nonlocal too_many
            with counting:
                working[user] += 1
                too_many |= working[user] > of_a_user or working.total() > most
            try:
                if not go.wait(PATIENCE) or end == "fails":
                    raise ValueError
                return user
            finally:
                with counting:
                    working[user] -= 1

        try:
            calls = [
                asyncio.create_task(threads.call(user, partial(work, user, end), 0.0 if end == "impatient" else 60.0))
                for user, end in jobs
            ]
            await asyncio.sleep(0)
            for call, (_, end) in zip(calls, jobs, strict=True):
                if end == "cancelled":
                    call.cancel()
            await asyncio.sleep(0)
            go.set()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            for outcome, (user, end) in zip(ended, jobs, strict=True):
                if end == "stays":
                    assert outcome == user
                elif end == "impatient":
                    assert outcome == user or isinstance(outcome, NoTurnError)
                else:
                    assert isinstance(outcome, asyncio.CancelledError if end == "cancelled" else ValueError)
            # As many as before find a place, at once.
            together = threading.Barrier(most)
            await asyncio.gather(*(threads.call(100 + n, partial(together.wait, PATIENCE), 60.0) for n in range(most)))
        finally:
            assert threads.close(PATIENCE)
        assert not too_many

    asyncio.run(asyncio.wait_for(scenario(), 2 * PATIENCE))


def test_a_user_whose_jobs_never_end_holds_up_no_other() -> None:
    async def scenario() -> None:
        threads: SharedThreads[int] = SharedThreads("shared", 3, 2)
        never = threading.Event()
        try:
            held = [asyncio.create_task(threads.call(1, never.wait, 60.0)) for _ in range(50)]
            await asyncio.sleep(0)
            for each in held[:25]:
                each.cancel()
            async with asyncio.timeout(PATIENCE):
                assert [await threads.call(user, lambda: "done", 60.0) for user in range(2, 12)] == ["done"] * 10
            with pytest.raises(NoTurnError):
                await threads.call(1, lambda: "done", 0.01)
            assert threads.waiting(1) == 25
            for each in held:
                each.cancel()
                with suppress(asyncio.CancelledError):
                    await each
            assert threads.waiting(1) == 0
        finally:
            never.set()
            assert threads.close(PATIENCE)

    asyncio.run(scenario())


@settings(deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.lists(st.tuples(USERS, st.integers(0, 5), st.integers(1, 3)), max_size=80),
)
def test_a_budget_is_never_exceeded_over_any_time(most: int, window: int, takings: list[tuple[int, int, int]]) -> None:
    budget: UserBudget[int] = UserBudget(most, window)
    taken: dict[int, list[tuple[int, int]]] = {}
    now = 0
    for user, later, amount in takings:
        now += later
        left = budget.left(user, now)
        if budget.take(user, now, amount):
            assert left >= amount
            taken.setdefault(user, []).append((now, amount))
        else:
            assert left < amount
        assert 0 <= budget.left(user, now) <= most
        assert budget.wait(user, now) == 0
    for of_user in taken.values():
        for first in range(len(of_user)):
            for last in range(first, len(of_user)):
                amount = sum(each for _, each in of_user[first : last + 1])
                assert amount <= most * (1 + (of_user[last][0] - of_user[first][0]) / window) + 1e-6
    # After a window all of it is there again, for each.
    assert all(budget.left(user, now + window) == pytest.approx(most) for user in range(5))


def test_what_is_used_beyond_a_budget_is_owed() -> None:
    budget: UserBudget[str] = UserBudget(2.0, 10.0)
    budget.spend("a", 0.0, 5.0)
    assert budget.wait("a", 0.0) == pytest.approx(15.0)
    assert budget.wait("a", 10.0) == pytest.approx(5.0)
    assert (budget.wait("a", 15.0), budget.wait("b", 0.0)) == (0.0, 0.0)
    assert not budget.take("a", 16.0)
    assert budget.take("b", 16.0)
