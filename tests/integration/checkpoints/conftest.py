"""A vault on a thread, a store on disk, and sessions that take checkpoints with real copier processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.checkpoints.world import World
from tests.integration.vault.running import ThreadedVault, descriptors, wait_for


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    before = descriptors()
    with ThreadedVault() as vault:
        yield World(vault, tmp_path / "store")
        vault.storage.empty()
    wait_for("all descriptors to be given back", lambda: descriptors() <= before)
