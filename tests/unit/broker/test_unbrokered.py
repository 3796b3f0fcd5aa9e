"""Which clients of a lane are strangers, by what its control daemon lists."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mpsguard.broker.unbrokered import Listing, is_anothers
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.model import ProcessKey
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
