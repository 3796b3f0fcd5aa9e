"""What the tests of held files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.stalled_files import StalledFiles
from tests.integration.guarded import Guarded


@pytest.fixture
def stalled(guarded: Guarded) -> Iterator[StalledFiles]:
    """A stranger's file system below the guard of a test."""
    mount = guarded.root / "stalled"
    mount.mkdir()
    with StalledFiles(mount) as files:
        yield files
