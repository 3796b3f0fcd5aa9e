"""The guard of the version before is told to end, and this one starts in its place, under clients that run."""

import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.client import Session
from mpsguard.vault.wire.address import socket_path
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded

BEFORE = "b34ecb108136"
"""The last commit with a guard of one process and lanes open to every user: nothing is released yet."""

pytestmark = pytest.mark.slow(seconds=40, reason="two guards, one after the other")


@pytest.fixture(scope="module")
def before() -> Iterator[Path]:
    """The tree of that version."""
    with tempfile.TemporaryDirectory(prefix="mpsguard-before-") as directory:
        archive = Path(directory) / "tree.tar"
        command = ["git", "archive", f"--output={archive}", BEFORE, "mpsguard", "fault_injection"]
        if subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=60, check=False).returncode:
            pytest.skip(f"this clone has no {BEFORE}: it is a shallow one")
        with tarfile.open(archive) as tree:
            tree.extractall(directory, filter="data")
        yield Path(directory)


LATER = ("simulated", "metrics_address")
"""Keys, or values of them, that version did not know."""


def as_before(text: str) -> str:
    """The configuration as that version knew it."""
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith(LATER))


def test_clients_lane_and_vault_go_on(before: Path) -> None:
    with Guarded() as guarded:
        text = guarded.config.read_text()
        guarded.config.write_text(as_before(text))
        guarded.hold_sockets()
        guarded.process.tree = before
        guarded.start()
        clients = [guarded.client() for _ in range(3)]
        for client in clients:
            client.expect("started")
        control = guarded.lane_in("ACTIVE")["control"]["pid"]
        assert guarded.stop() == 0
        guarded.process.tree = REPOSITORY
        guarded.config.write_text(text)
        waiting = guarded.client("--iterations", "3")
        guarded.start()
        assert guarded.lane_in("ACTIVE")["control"]["pid"] == control
        assert waiting.wait() == 0
        known = wait_for("the clients", lambda: {each["process"]["pid"] for each in guarded.clients()})
        assert known >= {client.pid for client in clients}
        assert [client.process.poll() for client in clients] == [None, None, None]
        for directory in (guarded.pipe, guarded.pipe.parent, guarded.pipe.parent.parent):
            assert not directory.stat().st_mode & 0o007, "open to everybody since the version before"
        with Session("after", socket=str(socket_path(guarded.run_directory)), keep=0.0) as session:
            session.publish(b"state")
            assert session.state() == b"state"
        assert guarded.client("--iterations", "3").wait() == 0
