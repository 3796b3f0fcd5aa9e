"""A guard that a drop-in has started: all that it has lies in the pipe directory, which users remove."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.leftovers import end_all
from tests.harness.stopped import stopped
from tests.harness.waiting import wait_for
from tests.integration.ctl_in_process import done_by
from tests.integration.guarded import SIMULATED, Program
from tests.integration.own_paths.ways import LEFT, MENDED, Way

pytestmark = pytest.mark.slow(seconds=120, reason="a guard for each way")

QUERY = "get_default_active_thread_percentage"
CLIENT = [sys.executable, "-m", "fault_injection.sim.client", "--seconds", "0.1"]


class Dropin:
    """Our front in the place of the vendor's, over the simulated daemon."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.public = root / "mps"
        self.environment = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.public),
            "CUDA_MPS_LOG_DIRECTORY": str(root / "log"),
            "MPSGUARD_CONTROL_BINARY": str(SIMULATED),
        }

    def front(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mpsguard.guard.dropin.control_program", *arguments],
            input=given,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return done_by(str(self.public / ".mpsguard" / "run"), *arguments)

    def guard(self) -> int:
        """The guard's pid."""
        return wait_for("a guard", lambda: next(iter(self._guards()), None))

    def _guards(self) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"mpsguard.cli.guard" in words and os.fsencode(self.public / ".mpsguard" / "mpsguard.toml") in words:
                    yield int(entry.name)

    def has_mps(self) -> bool:
        client = Program(CLIENT, self.environment)
        try:
            with_mps: bool = client.expect("connected", "bare", "died")["event"] == "connected"
            return with_mps
        finally:
            client.close()


@pytest.fixture
def dropin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dropin]:
    # Short: a socket's path has at most 107 bytes.
    root = Path(f"/tmp/mg-{os.getpid()}-{tmp_path_factory.mktemp('d').name}")
    root.mkdir(mode=0o755)
    there = Dropin(root)
    try:
        assert there.front("-d").returncode == 0
        assert there.has_mps()
        yield there
    finally:
        end_all(root)
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("way", MENDED, ids=lambda way: way.name)
def test_it_is_made_again_with_all_that_lies_in_it(dropin: Dropin, way: Way) -> None:
    way.to(dropin.public, dropin.guard())
    wait_for("MPS", lambda: dropin.ctl("check", "--for", "ready").returncode == 0 and dropin.has_mps())
    status = dropin.ctl("status")
    assert status.returncode in (0, 3)
    assert "without MPS" not in status.stdout
    assert dropin.front(given=f"{QUERY}\n").stdout == "100.0\n"


@pytest.mark.parametrize("way", LEFT, ids=lambda way: way.name)
def test_what_may_not_be_touched_is_told(dropin: Dropin, way: Way) -> None:
    way.to(dropin.public, dropin.guard())
    # Where the directory itself is gone, so is the guard's own socket: that is a no, too.
    wait_for("a no", lambda: dropin.ctl("check", "--for", "ready").returncode == 1)
    assert way.undo is not None
    way.undo(dropin.public)
    wait_for("MPS", lambda: dropin.ctl("check", "--for", "ready").returncode == 0 and dropin.has_mps())


def _with_all_and_the_guard(dropin: Dropin) -> None:
    guard = dropin.guard()
    with stopped(guard):
        shutil.rmtree(dropin.public)
        os.kill(guard, signal.SIGKILL)


def _the_guard_after_it(dropin: Dropin) -> None:
    with stopped(dropin.guard()):
        shutil.rmtree(dropin.public)
    wait_for("the directory", (dropin.public / "control").exists)
    os.kill(dropin.guard(), signal.SIGKILL)


@pytest.mark.parametrize("happens", [_with_all_and_the_guard, _the_guard_after_it])
def test_the_next_guard_finds_what_it_needs(dropin: Dropin, happens: Callable[[Dropin], None]) -> None:
    happens(dropin)
    wait_for("MPS", lambda: dropin.ctl("check", "--for", "ready").returncode == 0 and dropin.has_mps())
    assert dropin.front(given="quit\n").returncode == 0
