"""Turns at a lane's control daemon: one client of each user after another."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsguard.guard.lanes import lane_turns
from mpsguard.guard.lanes.lane_turns import AT_ONCE, LaneTurns

_CLIENTS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 3), st.sampled_from(["answered", "left", "cancelled"])), max_size=60
)


async def _settle() -> None:
    """Let all that can run do so: a turn's end wakes the next one in the following pass."""
    for _ in range(10):
        await asyncio.sleep(0)


class Daemon:
    """Clients that stay at the daemon until they are told to go."""

    def __init__(self) -> None:
        self.turns = LaneTurns()
        self.order: list[str] = []
        self.at_once = 0
        self._go: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def comes(self, name: str, uid: int) -> None:
        """A client of ``uid`` comes."""
        self._go[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._client(name, uid))

    async def _client(self, name: str, uid: int) -> None:
        async with self.turns.turn(uid) as answered:
            self.order.append(name)
            self.at_once += 1
            await self._go[name].wait()
            self.at_once -= 1
            answered()

    def answer(self) -> None:
        """The daemon has answered the first of those that are there."""
        self._go[next(name for name in self.order if not self._go[name].is_set())].set()

    async def leaves(self, name: str) -> None:
        """A client leaves while it waits."""
        self._tasks[name].cancel()
        with suppress(asyncio.CancelledError):
            await self._tasks[name]


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_turns, "LONGEST", 3600.0)


def test_a_user_with_hundreds_waits_for_itself() -> None:
    async def run() -> None:
        daemon = Daemon()
        for number in range(300):
            daemon.comes(f"theirs {number}", 1)
        await _settle()
        daemon.comes("mine", 2)
        for _ in range(AT_ONCE + 2):
            await _settle()
            assert daemon.at_once == AT_ONCE
            daemon.answer()
        # Behind those that were at the daemon, and one more of the other user.
        assert daemon.order.index("mine") <= AT_ONCE + 1
        for _ in range(301 - AT_ONCE - 2):
            await _settle()
            daemon.answer()
        await _settle()
        assert len(daemon.order) == 301
        assert [name for name in daemon.order if name != "mine"] == [f"theirs {number}" for number in range(300)]

    asyncio.run(run())


def test_users_come_in_turns() -> None:
    async def run() -> None:
        daemon = Daemon()
        for number in range(AT_ONCE):
            daemon.comes(f"first {number}", 9)
        await _settle()
        for uid in (1, 2, 3):
            for number in range(4):
                daemon.comes(f"{uid} {number}", uid)
        for _ in range(AT_ONCE + 12):
            await _settle()
            daemon.answer()
        assert daemon.order[AT_ONCE:] == [f"{uid} {number}" for number in range(4) for uid in (1, 2, 3)]

    asyncio.run(run())


def test_one_that_leaves_takes_no_place() -> None:
    async def run() -> None:
        daemon = Daemon()
        for number in range(AT_ONCE + 3):
            daemon.comes(str(number), 1)
        await _settle()
        await daemon.leaves(str(AT_ONCE))
        await daemon.leaves("0")
        await _settle()
        assert daemon.order == [*map(str, range(AT_ONCE)), str(AT_ONCE + 1)]

    asyncio.run(run())


def test_a_turn_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        """As at a daemon that starts a server: it decides itself which of the others it serves meanwhile."""
        monkeypatch.setattr(lane_turns, "LONGEST", 0.0)
        daemon = Daemon()
        for number in range(3 * AT_ONCE):
            daemon.comes(str(number), 1)
        async with asyncio.timeout(10):
            while len(daemon.order) < 3 * AT_ONCE:
                await asyncio.sleep(0)

    asyncio.run(run())


@settings(max_examples=200)
@given(_CLIENTS)
def test_no_place_is_lost(clients: list[tuple[int, int, str]]) -> None:
    """However clients come and go, all that stay are served, and there are as many places as before."""

    async def run() -> None:
        turns = LaneTurns()
        served = Counter[str]()
        at_once = most = 0

        async def client(passes: int, end: str, uid: int) -> None:
            nonlocal at_once, most
            async with turns.turn(uid) as answered:
                at_once += 1
                most = max(most, at_once)
                try:
                    for _ in range(passes):
                        await asyncio.sleep(0)
                finally:
                    at_once -= 1
                if end == "answered":
                    answered()
                    answered()
                served[end] += 1

        tasks = [asyncio.create_task(client(passes, end, uid)) for uid, passes, end in clients]
        for task, (uid, _, end) in zip(tasks, clients, strict=True):
            if end == "cancelled":
                for _ in range(uid):
                    await asyncio.sleep(0)
                task.cancel()
        came_of_it = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(each is None or isinstance(each, asyncio.CancelledError) for each in came_of_it), came_of_it
        assert most <= AT_ONCE
        staying = Counter(end for _, _, end in clients if end != "cancelled")
        assert {end: served[end] for end in staying} == staying
        async with asyncio.timeout(10):
            for _ in range(AT_ONCE):
                await turns.turn(0).__aenter__()

    asyncio.run(run())
