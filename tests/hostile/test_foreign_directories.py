"""Directories that another user has made first, or can write in: a guard of root's uses nothing there."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.guard.dropin import keeper
from tests.harness.guard_process import REPOSITORY
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=15, reason="starts keepers and guards"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

STRANGER = 65534
OWN = f"""
import contextlib, encodings.idna, os, sys, tomllib
from pathlib import Path
from mpsguard.guard import config
from mpsguard.guard.dropin import keeper
from mpsguard.guard.dropin import own_guard
from mpsguard.guard.dropin.keeper_log import KeeperLog
# Not before: the interpreter may lie where that user cannot read.
os.setgroups([]); os.setresgid({STRANGER}, {STRANGER}, {STRANGER}); os.setresuid({STRANGER}, {STRANGER}, {STRANGER})
home = Path(sys.argv[1])
variables = dict(CUDA_MPS_PIPE_DIRECTORY=str(home / "mps"), CUDA_MPS_LOG_DIRECTORY=str(home / "log"))
file = own_guard.prepare(home / "mps", variables, multiuser=False).config
KeeperLog.open(home / "log" / "mpsguard.log").close()
with contextlib.closing(keeper.HeldSockets(config.load(file))) as held:
    assert sorted(held.names.values()) == ["control", "control_privileged"]
"""
"""What a drop-in does before it starts its guard, as another user."""


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as guarded:
        yield guarded


@pytest.fixture
def precious(guarded: Guarded) -> Iterator[Path]:
    """A file of root's that is to stay as it is."""
    file = guarded.root / "precious"
    file.write_text("precious")
    file.chmod(0o600)
    yield file
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode), file.stat().st_uid) == ("precious", 0o600, 0)


def make(directory: Path, mode: int = 0o755, uid: int = STRANGER) -> None:
    directory.mkdir()
    directory.chmod(mode)
    os.chown(directory, uid, uid)


def dropin(guarded: Guarded, logs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run our `nvidia-cuda-mps-control` as root, over the simulated daemon."""
    environment = {
        **guarded.environment,
        "CUDA_MPS_LOG_DIRECTORY": str(logs),
        "MPSGUARD_CONTROL_BINARY": str(guarded.control),
        "PYTHONPATH": str(REPOSITORY),
    }
    program = [sys.executable, "-m", "mpsguard.guard.dropin.control_program", *arguments]
    return subprocess.run(program, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False)


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    for word in words:
        assert word in line


def test_a_log_directory_with_links_of_a_stranger(guarded: Guarded, precious: Path) -> None:
    logs = guarded.root / "nvidia-log"
    make(logs)
    (logs / "mpsguard.log").symlink_to(precious)
    (logs / "default-0").symlink_to(guarded.root)
    one_line(dropin(guarded, logs, "-d"), str(logs), "uid 65534", "CUDA_MPS_LOG_DIRECTORY")


def test_a_pipe_directory_of_a_stranger(guarded: Guarded, precious: Path) -> None:
    make(guarded.public)
    (guarded.public / "control").symlink_to(precious)
    one_line(dropin(guarded, guarded.root / "log", "-d"), str(guarded.public), "uid 65534", "CUDA_MPS_PIPE_DIRECTORY")
    assert os.listdir(guarded.public) == ["control"]


@pytest.mark.parametrize(("uid", "mode"), [(STRANGER, 0o755), (0, 0o777), (0, 0o1777)])
def test_a_keeper_makes_nothing_in_such_a_directory(guarded: Guarded, precious: Path, uid: int, mode: int) -> None:
    """The machine's own configuration names it, so that the drop-in has not looked."""
    make(guarded.public, mode, uid)
    (guarded.public / "control").symlink_to(precious)
    (guarded.public / "control_privileged").symlink_to(precious)
    told, tells = os.pipe()
    program = [sys.executable, "-m", keeper.__name__, "--config", str(guarded.config), "--tell", str(tells)]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, timeout=60, check=False, pass_fds=(tells,))
    os.close(tells)
    with os.fdopen(told) as said:
        (line,) = said.read().splitlines()
    assert str(guarded.public) in line
    assert done.returncode == 1
    assert sorted(os.listdir(guarded.public)) == ["control", "control_privileged"]


@pytest.mark.parametrize("place", ["mps", "run", "state", "log"])
@pytest.mark.parametrize(("uid", "mode"), [(STRANGER, 0o755), (0, 0o777)])
def test_a_guard_refuses_such_a_directory_before_it_starts_anything(
    guarded: Guarded, place: str, uid: int, mode: int
) -> None:
    make(guarded.root / place, mode, uid)
    guarded.start(ready=False)
    assert guarded.guard.wait(30) == 2
    (line,) = guarded.process.log.read_text().splitlines()
    assert str(guarded.root / place) in line
    assert os.listdir(guarded.root / place) == []


def test_the_log_of_a_keeper_is_private(guarded: Guarded) -> None:
    logs = guarded.root / "nvidia-log"
    assert dropin(guarded, logs, "-d").returncode == 0
    assert stat.S_IMODE((logs / "mpsguard.log").stat().st_mode) == 0o600
    assert dropin(guarded, logs, "quit").returncode == 0


def test_a_users_own_drop_in_makes_its_files_where_root_would_not_use_the_path(guarded: Guarded) -> None:
    """Its home may lie in a directory of a third user."""
    third = guarded.root / "third"
    make(third, 0o755, 12345)
    home = third / "home"
    make(home, 0o775)
    done = subprocess.run(
        [sys.executable, "-c", OWN, str(home)], cwd=REPOSITORY, env=guarded.environment, timeout=60, check=False
    )
    assert done.returncode == 0
    assert sorted(path.name for path in home.iterdir()) == ["log", "mps"]
    assert sorted(path.name for path in (home / "mps").iterdir()) == [".mpsguard", "control", "control_privileged"]
    assert {path.stat().st_uid for path in home.rglob("*")} == {STRANGER}
