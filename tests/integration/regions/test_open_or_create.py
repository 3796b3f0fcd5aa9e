"""One call for a region in every start of a program: the first, a standby's, and one after deaths."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.client import Chunk, LayoutMismatchError, TooLargeError, UnknownRegionError
from mpsguard.vault.client.mapped import HostBackend, open_or_create
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import wait_for
from tests.integration.vault.running import ThreadedVault, content, memory

PAGE = 4096
ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, signal, sys
from mpsguard.client import Session
from mpsguard.vault.client.mapped import HostBackend, open_or_create
session = Session("s", socket=sys.argv[1])
with open_or_create(session, HostBackend(), "r", 4096) as memory:
    state = session.state()
    if state is None:
        memory.view().write(b"0")
        session.publish(state := b"0")
    assert memory.view(0, len(state)).read() == state
    memory.view().write(b"%d" % (int(state) + 1))
    session.publish(b"%d" % (int(state) + 1))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def vault() -> Iterator[ThreadedVault]:
    with ThreadedVault() as running:
        yield running
        running.storage.empty()


def test_the_same_program_restarts_after_each_of_its_deaths(vault: ThreadedVault) -> None:
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", PROGRAM, vault.socket], check=False, cwd=ROOT, timeout=60)
        assert done.returncode == -signal.SIGKILL
    with vault.session() as session:
        assert session.state() == b"5"


def test_only_the_first_one_makes_it(vault: ThreadedVault) -> None:
    with vault.session() as first, open_or_create(first, HostBackend(), "r", PAGE) as made:
        assert made.made
        made.view().write(b"here")
        address = made.va
    with vault.session() as again, open_or_create(again, HostBackend(), "r", PAGE) as found:
        assert not found.made
        assert found.va == address
        assert found.view(0, 4).read() == b"here"
        found.view().write(b"also writable")


def test_a_standby_makes_nothing(vault: ThreadedVault) -> None:
    with vault.session(), vault.standby() as standby:
        with pytest.raises(UnknownRegionError):
            open_or_create(standby, HostBackend(), "r", PAGE)
        with pytest.raises(UnknownRegionError):
            standby.open_or_create("r", lambda: pytest.fail("a standby's memory is the writer's"))


def test_a_region_of_another_size_is_refused_and_left_alone(vault: ThreadedVault) -> None:
    with vault.session() as session:
        open_or_create(session, HostBackend(), "r", PAGE).close()
        with pytest.raises(LayoutMismatchError, match="4096 bytes, not 8192"):
            open_or_create(session, HostBackend(), "r", PAGE + 1)
        open_or_create(session, HostBackend(), "r", PAGE).close()
        session.release("r")


def test_chunks_are_asked_for_once_and_closed(vault: ThreadedVault) -> None:
    made: list[Chunk] = []

    def make() -> list[Chunk]:
        made.append(memory(len(made)))
        return made[-1:]

    with vault.session() as session:
        session.open_or_create("r", make, metadata=b"m").close()
        vault.settle()
        before = open_descriptors()
        with session.open_or_create("r", make, metadata=b"ignored") as region:
            assert os.pread(region.fds[0], PAGE, 0) == content(0)
            assert region.metadata == b"m"
        assert len(made) == 1
        wait_for("all descriptors to be given back", lambda: not opened_since(before))


def test_chunks_of_a_refused_region_are_closed(vault: ThreadedVault) -> None:
    with vault.session() as session:
        with pytest.raises(UnknownRegionError):
            session.open("warm")
        vault.settle()
        before = open_descriptors()
        # Longer than any region's metadata may be.
        with pytest.raises(TooLargeError):
            session.open_or_create("r", lambda: [memory(0)], metadata=b"x" * 20_000)
        wait_for("all descriptors to be given back", lambda: not opened_since(before))


def test_what_is_read_can_be_published(vault: ThreadedVault) -> None:
    with vault.session() as session:
        assert session.state() is None
        session.publish(b"state")
        state = session.state()
        assert state is not None
        assert session.publish(state) == 2
        assert session.state() == b"state"
