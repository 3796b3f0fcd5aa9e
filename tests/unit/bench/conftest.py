"""Directories short enough for the sockets of a guard's lane."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """pytest's own lies too deep in a worker: a socket's path may have 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="suite-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
