"""A stranger holds the inode's lock of all memory that the vault shares with it, by writes of pages that never come."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mpsguard.client import LeaseRole, Session
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import PATIENCE
from tests.hostile import vault_attacks
from tests.hostile.stalled_files import StalledFiles
from tests.hostile.vault_neighbours import NOBODY, Neighbourhood, attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=30, reason="attacks a real guard"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="FUSE is needed"),
]
ENDS_WITHIN = 30.0
"""Seconds; what waits for the stranger's file waits until the test gives up."""


@pytest.fixture
def neighbourhood() -> Iterator[Neighbourhood]:
    with Neighbourhood().open() as opened:
        yield opened


@pytest.fixture
def stalled() -> Iterator[StalledFiles]:
    # Not below pytest's directories, which other users cannot enter.
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with StalledFiles(Path(directory)) as files:
            yield files


def test_a_lease_ends_while_its_holder_writes_to_all_that_it_shares(
    neighbourhood: Neighbourhood, stalled: StalledFiles
) -> None:
    with (
        neighbourhood.good_client() as is_answered,
        attack(neighbourhood.path, vault_attacks.hold_all_and_leave, stalled=stalled),
    ):
        is_answered(100)
        neighbourhood.vault.stop(ENDS_WITHIN)
        neighbourhood.vault.start()
        is_answered(100)
        with Session("held", socket=neighbourhood.path, owner=NOBODY, deadline=PATIENCE, role=LeaseRole.READER) as read:
            assert read.state() == b"published"


def test_memory_that_is_written_to_meanwhile_is_taken_if_it_is_sealed(
    neighbourhood: Neighbourhood, stalled: StalledFiles
) -> None:
    with (
        neighbourhood.good_client() as is_answered,
        attack(neighbourhood.path, vault_attacks.send_memory_that_is_held, stalled=stalled),
    ):
        is_answered(10)
        assert neighbourhood.vault.stop(ENDS_WITHIN) == 0
        neighbourhood.vault.start()
        is_answered(10)


def test_a_lease_ends_while_hundreds_of_threads_write(neighbourhood: Neighbourhood) -> None:
    """Without FUSE: no single write lasts long, but all of them do."""
    with (
        neighbourhood.good_client() as is_answered,
        attack(neighbourhood.path, vault_attacks.write_large_ranges_and_leave),
    ):
        began = time.monotonic()
        is_answered(20)
        assert time.monotonic() - began < ENDS_WITHIN
        neighbourhood.vault.stop(ENDS_WITHIN)
        neighbourhood.vault.start()
        is_answered(20)


def test_a_strangers_program_is_asked_for_a_checkpoint_and_shown(stalled: StalledFiles) -> None:
    with Guarded() as guarded:
        guarded.start()
        path = str(guarded.run_directory / "vault.sock")
        with attack(path, vault_attacks.hold_all, stalled=stalled):
            # More than the threads that the guard has on two processors.
            for number in range(1, 8):
                assert ctl(guarded, "checkpoint", str(NOBODY), "held", "asked")["number"] == number
            assert ctl(guarded, "show", str(NOBODY), "held")["sequence"] == 1
            began = time.monotonic()
            assert guarded.stop() == 0
            assert time.monotonic() - began < ENDS_WITHIN
            guarded.start()
            assert ctl(guarded, "show", str(NOBODY), "held")["sequence"] == 1
            assert ctl(guarded, "checkpoint", str(NOBODY), "held", "asked")["number"] == 8
            assert ctl(guarded, "release", str(NOBODY), "held", "--force")
            assert ctl(guarded, "list")["sessions"] == []
            guarded.stop()


def ctl(guarded: Guarded, *arguments: str) -> Any:
    command = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guarded.run_directory), "--json"]
    done = subprocess.run([*command, "vault", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)
