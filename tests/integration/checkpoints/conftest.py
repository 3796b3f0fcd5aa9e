"""A vault on a thread, a store on disk, and sessions that take checkpoints with real copier processes."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import wait_for
from tests.integration.checkpoints.world import World
from tests.integration.vault.running import ThreadedVault


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # Not below `tmp_path`, which is too long for the vault's socket.
    temporary = Path(tempfile.mkdtemp(prefix="mgt-"))
    # Of this process, and of its children.
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = open_descriptors()
    with ThreadedVault() as vault:
        yield World(vault, tmp_path / "store")
        vault.storage.empty()
    wait_for("all descriptors to be given back", lambda: not opened_since(before))
    wait_for("temporary files to be removed", lambda: not list(temporary.glob("mpsguard-*")))
    # Libraries leave others.
    shutil.rmtree(temporary)
