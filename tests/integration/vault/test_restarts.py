"""A vault without a service manager is SIGKILLed at random moments; its holder keeps everything, its clients go on."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard import client
from mpsguard.client import LeaseRole, Session
from mpsguard.linux.descriptors import fd_bundle
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import wait_for
from tests.integration.vault.running import REPOSITORY, VaultProcess, close_chunks, content, memory
from tests.open_files import open_files

pytestmark = pytest.mark.slow(seconds=30, reason="kills vaults at random moments")

KILLS = 20


@pytest.fixture
def vault() -> Iterator[VaultProcess]:
    before = open_descriptors()
    with VaultProcess() as running:
        yield running
    assert opened_since(before) == []


def verify(session: Session, name: str, what: tuple[int, int]) -> None:
    first, count = what
    with session.open(name) as region:
        assert [os.pread(fd, 4096, 0) == content(first + n) for n, fd in enumerate(region.fds)] == [True] * count


def test_sigkill_at_random_moments_loses_nothing_and_leaves_nothing_half_made(vault: VaultProcess) -> None:
    chance = random.Random(5)
    made: dict[str, tuple[int, int]] = {}
    with Session("work", socket=vault.socket, keep=None, deadline=30) as writer:
        standby = Session("work", socket=vault.socket, role=LeaseRole.STANDBY, deadline=30)
        number = 0
        worked = threading.Semaphore(0)
        with vault.killed_again_and_again(KILLS, random.Random(6), worked) as over:
            while not over.is_set():
                number += 1
                name = f"r{number}"
                count = chance.choice((1, 3, 300))
                chunks = [memory(number + n) for n in range(count)]
                writer.create(name, chunks, metadata=name.encode())
                made[name] = (number, count)
                close_chunks(chunks)
                writer.publish(name.encode())
                assert writer.latest() == (number, 1, name.encode())
                verify(standby, *chance.choice(list(made.items())))
                if len(made) > 10:
                    gone = chance.choice(sorted(made))
                    writer.release(gone)
                    del made[gone]
                assert sorted(standby.names()) == sorted(made)
                worked.release()
        for each in made.items():
            verify(standby, *each)
            assert standby.describe(each[0]).metadata == each[0].encode()
        assert standby.latest() == writer.latest()
        standby.close()
        assert number >= KILLS
        assert len(vault.holders()) == 1


def test_a_vault_that_was_stopped_in_order_leaves_everything_to_its_holder(vault: VaultProcess) -> None:
    chunks = [memory(n) for n in range(5)]
    with Session("work", socket=vault.socket) as writer:
        writer.create("r", chunks)
        assert vault.stop() == 0
        writer.publish(b"while nobody is there")
        vault.start()
        verify(writer, "r", (0, 5))
    with Session("work", socket=vault.socket) as writer:
        assert writer.latest() == (1, 1, b"while nobody is there")
        assert writer.generation == 2
    close_chunks(chunks)


def test_a_holder_ends_when_there_is_nothing_to_hold(vault: VaultProcess) -> None:
    with Session("work", socket=vault.socket) as writer:
        assert len(vault.holders()) == 1
        writer.release()
    assert vault.stop() == 0
    wait_for("the holder's end", lambda: not vault.holders())


def memories(pid: int) -> int:
    """How many memfds a process has open."""
    return sum(link.startswith("/memfd:") for link in open_files(pid))


def test_a_holder_that_dies_is_replaced_and_given_everything(vault: VaultProcess) -> None:
    chunks = [memory(n) for n in range(300)]
    with Session("work", socket=vault.socket) as writer:
        writer.create("r", chunks)
        writer.publish(b"state")
        [old] = vault.holders()
        # What was answered for is held: 300 chunks, manifest, page and state buffer. Not what is on its way.
        held = memories(old)
        assert held == 303
        os.kill(old, signal.SIGKILL)

        def given_everything() -> bool:
            return any(memories(pid) >= held for pid in vault.holders() if pid != old)

        wait_for("another holder", given_everything)
        vault.kill()
        vault.start()
        verify(writer, "r", (0, 300))
        assert writer.latest() == (1, 1, b"state")
    close_chunks(chunks)


def test_a_dead_writers_lease_ends_although_no_vault_saw_it_die(vault: VaultProcess) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, vault.socket], cwd=REPOSITORY, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"made\n"
        vault.kill()
        writer.kill()
        writer.wait()
        vault.start()
        with Session("work", socket=vault.socket) as successor:
            assert successor.generation == 2
            assert successor.latest() == (1, 1, b"state")
            with successor.open("r") as region:
                assert len(region.fds) == 1


WRITER = """
import os, sys, time
from mpsguard.client import Chunk, Session
session = Session("work", socket=sys.argv[1])
fd = os.memfd_create("x")
os.ftruncate(fd, 4096)
session.create("r", [Chunk(fd, 4096)])
session.publish(b"state")
print("made", flush=True)
time.sleep(1000)
"""


def test_two_vaults_do_not_share_a_directory(vault: VaultProcess) -> None:
    with Session("work", socket=vault.socket):
        second = subprocess.run(
            [sys.executable, "-m", "mpsguard.guard.daemon.vault_service", str(vault.run_directory)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert second.returncode == 1
    assert len(second.stderr.splitlines()) == 1
    with Session("other", socket=vault.socket):
        pass


def test_without_a_vault_there_is_one_clear_error(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(client.UnavailableError, match="no vault at"):
        Session("work", socket=str(tmp_path / "none"), deadline=0.2)
    assert time.monotonic() - began < 10


def test_a_bundle_can_be_read_by_many_and_outlives_its_maker() -> None:
    chunks = [memory(n) for n in range(600)]
    bundle = fd_bundle.pack(b"label", [chunk.fd for chunk in chunks])
    close_chunks(chunks)
    copy = socket.socket(fileno=os.dup(bundle.kept.fileno()))
    bundle.kept.close()
    for _ in range(2):
        label, fds = fd_bundle.unpack(copy)
        assert label == b"label"
        assert all(os.pread(fd, 4096, 0) == content(n) for n, fd in enumerate(fds))
        close_chunks([client.Chunk(fd, 0) for fd in fds])
        assert len(fds) == 600
    assert fd_bundle.is_kept(bundle.receipt)
    copy.close()
    assert not fd_bundle.is_kept(bundle.receipt)
    bundle.receipt.close()
