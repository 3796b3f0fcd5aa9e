"""Which clients of a lane are strangers, by what its control daemon lists."""

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mpsguard.guard.broker.unbrokered import Listing, Reconciliation, is_anothers
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_spec import LaneSpec
from mpsguard.guard.model import LaneReport, LaneState, Server
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.stat_reader import StatReader
from tests.unit.linux.stat_reading import run


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def test_one_that_is_listed_twice_and_not_known_is_a_stranger(process: subprocess.Popen[bytes]) -> None:
    async def scenario(stats: StatReader) -> None:
        listing = Listing(stats)
        assert await listing.strangers([process.pid, os.getpid()], {os.getpid()}) == []
        assert await listing.strangers([process.pid, os.getpid()], {os.getpid()}) == [process.pid]
        assert await listing.strangers([process.pid], {process.pid}) == []

    run(scenario)


def test_one_that_was_about_to_be_known_is_none(process: subprocess.Popen[bytes]) -> None:
    async def scenario(stats: StatReader) -> None:
        listing = Listing(stats)
        assert await listing.strangers([process.pid], set()) == []
        assert await listing.strangers([process.pid], {process.pid}) == []
        assert await listing.strangers([process.pid], set()) == [], "it was known in between: counted anew"

    run(scenario)


def test_the_pid_of_an_ended_client_is_none_for_as_long_as_it_is_listed(process: subprocess.Popen[bytes]) -> None:
    async def scenario(stats: StatReader) -> None:
        listing = Listing(stats)
        listing.client_ended(process.pid)
        for _ in range(3):
            assert await listing.strangers([process.pid], set()) == []
        assert await listing.strangers([], set()) == []
        assert await listing.strangers([process.pid], set()) == []
        assert await listing.strangers([process.pid], set()) == [process.pid]

    run(scenario)


def test_a_client_that_ends_while_the_list_is_requested_has_ended(process: subprocess.Popen[bytes]) -> None:
    async def scenario(stats: StatReader) -> None:
        listing = Listing(stats)
        known_before = {process.pid}
        listing.client_ended(process.pid)
        assert await listing.strangers([process.pid], known_before) == []
        assert [await listing.strangers([process.pid], set()) for _ in range(3)] == [[], [], []]

    run(scenario)


def test_a_pid_without_a_process_is_none() -> None:
    async def scenario(stats: StatReader) -> None:
        with subprocess.Popen(["true"]) as child:
            child.wait()
            listing = Listing(stats)
            assert [await listing.strangers([child.pid], set()) for _ in range(2)] == [[], []]

    run(scenario)


def test_the_pid_of_a_held_lifeline_makes_no_other_process_a_client() -> None:
    ended, its_heir, other = ProcessKey(7, 100), ProcessKey(7, 900), ProcessKey(8, 100)
    assert is_anothers(its_heir, [other, ended])
    assert not is_anothers(ended, [ended])
    assert not is_anothers(other, [ended])
    assert not is_anothers(ProcessKey(7, 100, 1), [ended]), "the same process, which executed another program"


class ListingLane:
    """A lane that lists one process."""

    def __init__(self, listed: int) -> None:
        self.listed = listed
        self.spec = LaneSpec("d-0", "d", Path(), Path(), "", False, (), 1.0, 1.0, 0.01, 1, 1.0)
        servers = (Server(ProcessKey(os.getpid(), 0), "ACTIVE"),)
        self.report = LaneReport("d-0", "d", LaneState.ACTIVE, "", 0.0, "", "", servers=servers)

    async def clients(self) -> dict[int, int]:
        return {self.listed: 0}


def test_a_look_without_descriptors_is_not_the_last_one(process: subprocess.Popen[bytes]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scenario(stats: StatReader) -> None:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        limits = [3, soft]

        async def on_found(_: Lane, pid: int) -> None:
            # It needs a descriptor, as the guard's look at a client does, and the first time there is none.
            resource.setrlimit(resource.RLIMIT_NOFILE, (limits.pop(0) if limits else soft, hard))
            try:
                os.close(os.pidfd_open(pid))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            if not found.done():
                found.set_result(pid)

        lane = cast("Lane", ListingLane(process.pid))
        looking = asyncio.create_task(Reconciliation(lane, set, on_found, stats).run())
        try:
            awaited: set[asyncio.Future[Any]] = {looking, found}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED, timeout=30)
            assert not looking.done(), looking
            assert await found == process.pid
            assert not limits
        finally:
            looking.cancel()
            await asyncio.wait({looking})

    run(scenario)
