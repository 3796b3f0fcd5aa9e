"""Porters that what they were sent keeps from going on."""

import os
import resource
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.linux.processes import procfs
from tests.harness.stopped import stopped
from tests.harness.waiting import PATIENCE, wait_for
from tests.hostile import vault_attacks
from tests.hostile.stalled_files import StalledFiles
from tests.hostile.vault_neighbours import Neighbourhood, attack

pytestmark = [
    pytest.mark.slow(seconds=20, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users"),
]


@pytest.fixture
def neighbourhood() -> Iterator[Neighbourhood]:
    with Neighbourhood().open() as opened:
        yield opened


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here")
def test_a_file_that_does_not_close_holds_its_senders_porter_alone(neighbourhood: Neighbourhood) -> None:
    mount = neighbourhood.vault.root / "stalled"
    mount.mkdir()
    with StalledFiles(mount, flushes=False) as stalled:
        with attack(neighbourhood.path, vault_attacks.a_file_that_does_not_close, stalled=stalled):
            assert stalled.closing.acquire(timeout=PATIENCE)
            (porter,) = neighbourhood.porters()
            os.kill(porter, signal.SIGKILL)
            wait_for("that it cannot be killed", lambda: procfs.state(porter) == "D")
            with neighbourhood.good_client() as is_answered:
                is_answered(100)
            assert neighbourhood.vault.stop() == 0
            assert procfs.state(porter) == "D"
        wait_for("its end", lambda: procfs.state(porter) in (None, "Z"))


def said(stranger: subprocess.Popen[bytes]) -> bytes:
    assert stranger.stdout is not None
    assert select.select([stranger.stdout], [], [], PATIENCE)[0], "it says nothing"
    return stranger.stdout.readline()


def test_a_porter_that_does_not_go_on_is_ended_and_leases_stand(neighbourhood: Neighbourhood) -> None:
    """The kernel itself drops what finds no room among the porter's descriptors, and lingers."""
    with neighbourhood.good_client() as is_answered:
        others = neighbourhood.porters()
        with attack(neighbourhood.path, vault_attacks.lingering_when_told) as stranger:
            (porter,) = neighbourhood.porters() - others
            taken = set(map(int, os.listdir(f"/proc/{porter}/fd")))
            full = min(set(range(len(taken) + 1)) - taken)
            resource.prlimit(porter, resource.RLIMIT_NOFILE, (full, full))
            with stopped(porter):
                stranger.send_signal(signal.SIGUSR1)
                assert said(stranger) == b"sent\n"
            is_answered(100)
            assert said(stranger) == b"Welcome\n"
            assert porter not in neighbourhood.porters()
        is_answered(10)
