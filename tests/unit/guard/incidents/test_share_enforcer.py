"""Turns of users for resizes: a session that never comes to an end holds up its own user's alone."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mpsguard.guard.incidents.live_resize import ResizeError
from mpsguard.guard.incidents.share_enforcer import AT_ONCE, FIRST_PAUSE, LONGEST_PAUSE, ResizeFailure, ResizeTurns
from mpsguard.vault.wire.region import SessionKey

ALICE, BOB = 1001, 1002


class Turns:
    """Turns, and what became of them; a resize of a session named ``slow`` never ends, one of ``bad`` fails."""

    def __init__(self, deadline: float = 60.0) -> None:
        self.time = 0.0
        self.begun: list[SessionKey] = []
        self.done: list[SessionKey] = []
        self.failed: list[ResizeFailure] = []
        self.changed = asyncio.Event()
        self.turns = ResizeTurns(
            self._resize,
            done=lambda key, _: self.done.append(key),
            failed=self.failed.append,
            over=self.changed.set,
            deadline=deadline,
            now=lambda: self.time,
        )

    async def _resize(self, key: SessionKey, _: float) -> None:
        self.begun.append(key)
        if key.name.startswith("slow"):
            await asyncio.Event().wait()
        if key.name.startswith("bad"):
            raise ResizeError("no standby")

    async def offer(self, *keys: SessionKey) -> None:
        """Offer sessions, and let what was begun run until it waits."""
        self.turns.offer(dict.fromkeys(keys, 40.0))
        for _ in range(4):
            await asyncio.sleep(0)


def run(body: Callable[[Turns], Awaitable[None]], deadline: float = 60.0) -> None:
    async def whole() -> None:
        turns = Turns(deadline)
        try:
            await body(turns)
        finally:
            await turns.turns.close()

    asyncio.run(whole())


def test_a_session_that_never_ends_holds_up_no_other_users() -> None:
    async def body(seen: Turns) -> None:
        slow, more, other = SessionKey(ALICE, "slow"), SessionKey(ALICE, "more"), SessionKey(BOB, "other")
        await seen.offer(slow, more, other)
        assert (seen.begun, seen.done) == ([slow, other], [other])
        await seen.offer(slow, more)
        assert more not in seen.begun

    run(body)


def test_it_has_a_deadline_and_then_its_users_next_one_comes() -> None:
    async def body(seen: Turns) -> None:
        slow, more = SessionKey(ALICE, "slow"), SessionKey(ALICE, "more")
        await seen.offer(slow, more)
        await asyncio.wait_for(seen.changed.wait(), 5)
        assert [each.session for each in seen.failed] == [slow]
        await seen.offer(slow, more)
        assert seen.done == [more]

    run(body, deadline=0.01)


def test_the_user_that_waits_longest_comes_first_where_all_places_are_taken() -> None:
    async def body(seen: Turns) -> None:
        slow = [SessionKey(2000 + number, "slow") for number in range(AT_ONCE - 1)]
        had = SessionKey(ALICE, "first")
        await seen.offer(had, *slow)
        last = SessionKey(9999, "slow-too")
        again = SessionKey(ALICE, "slow-again")
        # One place is free, for one of two: the user that had a turn already comes after the one that had none.
        await seen.offer(again, last)
        assert seen.begun[-1] == last
        assert again not in seen.begun

    run(body)


def test_one_that_fails_is_tried_ever_more_rarely() -> None:
    async def body(seen: Turns) -> None:
        bad = SessionKey(ALICE, "bad")
        for _ in range(9):
            await seen.offer(bad)
            await seen.offer(bad)
            seen.time += seen.failed[-1].again_in
        pauses = [each.again_in for each in seen.failed]
        assert pauses[:2] == [FIRST_PAUSE, 2 * FIRST_PAUSE]
        assert (len(pauses), pauses[-1]) == (9, LONGEST_PAUSE)

    run(body)


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_known_of_a_session_ends_with_it(kept: bool) -> None:
    async def body(seen: Turns) -> None:
        bad = SessionKey(ALICE, "bad")
        await seen.offer(bad)
        seen.turns.keep([bad] if kept else [])
        await seen.offer(bad)
        assert len(seen.failed) == (1 if kept else 2)

    run(body)
