"""Turns of users on the vault's loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import wraps

import pytest

from mpsguard.linux.identity import ROOT
from mpsguard.vault.server.turns import BURST_S, SHARE, Turns

USER, OTHER = 1000, 1001


def in_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def within() -> None:
            async with asyncio.timeout(60):
                await test()

        asyncio.run(within())

    return run


async def served(turns: Turns, uid: int, requests: list[int]) -> None:
    await turns.take(uid)
    requests.append(uid)


@in_a_loop
async def test_a_user_has_one_request_in_a_turn_of_the_loop() -> None:
    turns, requests = Turns(), list[int]()
    waiting = [asyncio.create_task(served(turns, uid, requests)) for uid in (USER, OTHER) for _ in range(20)]
    seen = 0
    while len(requests) < len(waiting):
        await asyncio.sleep(0)
        assert requests[seen:].count(USER) <= 1
        assert requests[seen:].count(OTHER) <= 1
        seen = len(requests)


@in_a_loop
async def test_what_a_user_has_taken_beyond_its_burst_is_waited_for_and_by_that_user_alone() -> None:
    turns = Turns()
    began = time.monotonic()
    turns.spent(USER, BURST_S + 0.02)
    await turns.take(OTHER)
    await turns.take(ROOT)
    assert USER not in turns._next
    await turns.take(USER)
    # The clock of the loop is as fine as that of its timers.
    assert time.monotonic() - began >= 0.02 / SHARE - 0.01


@in_a_loop
async def test_a_block_is_charged_with_the_processor_time_that_it_takes() -> None:
    turns = Turns()
    with turns.charged(USER):
        until = time.thread_time() + BURST_S + 0.02
        while time.thread_time() < until:
            pass
    began = time.monotonic()
    await turns.take(USER)
    assert time.monotonic() - began >= 0.02 / SHARE - 0.01


@in_a_loop
async def test_a_request_that_is_given_up_takes_no_turn() -> None:
    turns, requests = Turns(), list[int]()
    first, second = (asyncio.create_task(served(turns, USER, requests)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert requests == [USER]


class Booking(Turns):
    def __init__(self) -> None:
        super().__init__()
        self.booked = 0.0

    def spent(self, uid: int, seconds: float) -> None:
        assert uid == USER
        self.booked += seconds


@in_a_loop
async def test_what_a_coroutine_takes_is_booked_and_what_it_waits_for_is_not() -> None:
    turns = Booking()

    async def work() -> None:
        await asyncio.sleep(0.3)
        due = time.thread_time() + 0.02
        while time.thread_time() < due:
            pass

    await turns.metered(USER, work())
    assert 0.02 <= turns.booked < 0.3


@in_a_loop
async def test_a_metered_coroutine_is_cancelled_and_raises_as_any_other() -> None:
    turns, seen = Turns(), list[str]()

    async def waits() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("mine")

    task = asyncio.create_task(turns.metered(USER, waits()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
    with pytest.raises(ValueError, match="mine"):
        await turns.metered(USER, fails())
