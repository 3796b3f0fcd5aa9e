"""How many of a user's processes come to the lane for standbys."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.broker.standby_places import StandbyPlaces
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.model import Client
from mpsguard.linux.identity import Credentials, ProcessKey
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.stat_reader import StatReader

ALICE, BOB, ROOT = 1001, 1002, 0


class Uninterested:
    """Hears of clients, and does nothing."""

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """See `client_table.Audience`."""

    def client_came_again(self, client: Client, handle: ProcessHandle) -> None:
        """See `client_table.Audience`."""

    def client_ended(self, client: Client, handle: ProcessHandle) -> None:
        """See `client_table.Audience`."""


class Population:
    """Clients that are living processes, and the places that they get."""

    def __init__(self) -> None:
        self.stats = StatReader()
        self.table = ClientTable(Uninterested(), self.stats)
        self.writers: set[ProcessKey] | None = set()
        self.events = EventStream()
        self.places = StandbyPlaces("d", lambda: "d-1", self.table, lambda: self.writers, self.events)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> ProcessHandle:
        self.processes.append(subprocess.Popen(["sleep", "60"]))
        return ProcessHandle.open(self.processes[-1].pid)

    def client(self, uid: int, lane: str, *, writes: bool = False) -> None:
        handle = self.start()
        if writes and self.writers is not None:
            self.writers.add(handle.key)
        self.table.add(Client(handle.key, uid, uid, "sleep", "", None, None, "d", lane, 0.0), handle)

    def comes(self, uid: int) -> bool:
        """Whether one more process of a user that comes has a place."""
        with self.start() as handle:
            self.table.entering[handle.key] = uid
            return self.places.has(handle.key, Credentials(handle.key.pid, uid, uid))


@contextmanager
def population() -> Iterator[Population]:
    found = Population()
    try:
        yield found
    finally:
        found.table.close()
        found.stats.close()
        for process in found.processes:
            process.kill()
            process.wait()


def check(body: Callable[[Population], None]) -> None:
    async def whole() -> None:
        with population() as found:
            body(found)

    asyncio.run(whole())


def test_a_user_has_two_places_for_each_writer_also_if_many_come_at_once() -> None:
    def body(seen: Population) -> None:
        seen.client(ALICE, "d-0", writes=True)
        assert [seen.comes(ALICE) for _ in range(4)] == [True, True, False, False]
        assert not seen.comes(BOB)
        assert len([event for event in seen.events.recent() if event.kind == "standby_denied"]) == 3

    check(body)


def test_clients_that_are_there_count_and_a_writer_there_does_not() -> None:
    def body(seen: Population) -> None:
        seen.client(ALICE, "d-1", writes=True)
        seen.client(ALICE, "d-1")
        assert [seen.comes(ALICE) for _ in range(2)] == [True, False]

    check(body)


def test_the_answer_stays_for_a_process_and_a_place_is_free_after_it() -> None:
    def body(seen: Population) -> None:
        seen.client(ALICE, "d-0", writes=True)
        with seen.start() as one, seen.start() as other:
            for key in (one.key, other.key):
                seen.table.entering[key] = ALICE
                sender = Credentials(key.pid, ALICE, ALICE)
                assert seen.places.has(key, sender)
                assert seen.places.has(key, sender)
            assert not seen.comes(ALICE)
            seen.table.left(one.key)
            assert seen.comes(ALICE)

    check(body)


def test_root_is_not_bounded() -> None:
    def body(seen: Population) -> None:
        assert [seen.comes(ROOT) for _ in range(3)] == [True, True, True]

    check(body)


def test_as_long_as_the_writers_are_not_known_each_has_a_place() -> None:
    def body(seen: Population) -> None:
        seen.writers = None
        assert seen.comes(ALICE)

    check(body)
