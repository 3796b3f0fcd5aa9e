"""A fresh simulated stack for each test; everything it started is ended with it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fault_injection.sim.stack import SimulatedStack

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path that other users may enter: tmp_path is private, and too long for sun_path under some runners."""
    directory = Path(tempfile.mkdtemp(prefix="sim-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def idle(root: Path) -> Iterator[SimulatedStack]:
    """A stack with a daemon that was not started yet."""
    stack = SimulatedStack(root)
    yield stack
    stack.stop()


@pytest.fixture
def stack(idle: SimulatedStack) -> SimulatedStack:
    return idle.start()


@pytest.fixture
def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("forged credentials and other uids need root")
