"""PYTHONPATH counts for no helper of a program that runs with ``python3 -I``, as installed ones do."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import mpsguard

DEADLINE = 60.0
ROOT = Path(mpsguard.__file__).resolve().parents[1]

TRAP = """
import os, sys
with open(os.path.join({directory!r}, str(os.getpid())), "w") as found:
    found.write(" ".join(sys.orig_argv))
"""

PROGRAM = f"""
import asyncio, os, socket, sys
from contextlib import suppress
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
at = Path(sys.argv[1])
"""

HOLDER = """
from mpsguard.linux.descriptors import fd_bundle
from mpsguard.vault.server.fd_storage.holder_client import HolderClient
async def main():
    storage = await HolderClient.open(at / "holder")
    await storage.keep("mgv-r1", fd_bundle.pack(b"mgv-r1", (0,)))
    await storage.leave()
    await storage.close()
asyncio.run(main())
"""

PORTER = """
from mpsguard.linux.identity import Credentials
from mpsguard.vault.server.porters import Porters
async def main():
    porters = Porters()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            admitted = porters.admit(theirs, Credentials(os.getpid(), os.geteuid(), os.getegid()))
    with admitted.socket as vault:
        vault.setblocking(False)
        # The porter tells of the end of the client, and closes its end.
        while await asyncio.get_running_loop().sock_recv(vault, 4096):
            pass
    porters.release(admitted)
    await porters.close()
asyncio.run(main())
"""

LAUNCHER = """
from mpsguard.guard.processes.launcher import Launcher
Launcher([]).close()
"""

COPIER = """
from mpsguard.images.checkpoints.copier_process import CopierProcess
from mpsguard.images.checkpoints.messages import Setup
copier = CopierProcess(Setup("s", os.geteuid(), str(at / "vault"), str(at / "store"), None, 0, "program"), None)
copier.close()
assert copier.reap(30)
"""

SNAPSHOT = """
from mpsguard.images.snapshot.command import take
from mpsguard.images.snapshot.errors import SnapshotError
with suppress(SnapshotError):
    take(os.getpid(), at / "snapshot", deadline=10.0, on_expected=print, on_copied=print)
"""

KEEPER = """
from mpsguard.guard.dropin import keeper_start
config = at / "mpsguard.toml"
config.write_text(f'''
[guard]
run_directory = "{at}/run"
state_directory = "{at}/state"
log_directory = "{at}/logs"
metrics_address = "off"
[[domain]]
name = "d"
pipe_directory = "{at}/pipes"
control_binary = "{at}/missing"
simulated = true
''')
try:
    keeper_start.in_background(config, at / "log", os.environ)
except keeper_start.KeeperStartError as error:
    print(error, (at / "log").read_text())
"""

WORKER = """
from mpsguard.images.pool.own_process import ExecutedProcess
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
with theirs:
    worker = ExecutedProcess("mpsguard.images.pool.worker", theirs, ["mpsguard.nothing:at_all"], at / "pool")
ours.close()
os.waitid(os.P_PIDFD, worker.pidfd, os.WEXITED | os.WNOWAIT)
worker.reap()
"""

STARTED = pytest.mark.parametrize(
    "helper",
    [HOLDER, PORTER, LAUNCHER, COPIER, SNAPSHOT, KEEPER],
    ids=["holder", "porter", "launcher", "copier", "snapshot", "keeper and guard"],
)


@pytest.fixture
def trap() -> Iterator[Path]:
    """A directory with a module that each Python imports which takes notice of PYTHONPATH; where it tells of itself."""
    # Not tmp_path: sockets are made in it, and the names of these have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="mgp-") as directory:
        found = Path(directory) / "found"
        found.mkdir()
        path = found.with_name("path")
        path.mkdir()
        (path / "sitecustomize.py").write_text(TRAP.format(directory=str(found)))
        yield found


def run(helper: str, trap: Path, *, isolated: bool) -> list[str]:
    """Start a helper from a program, and return the commands of all processes that were trapped."""
    program = trap.parent / "program.py"
    program.write_text(PROGRAM + helper)
    work = trap.parent / "work"
    work.mkdir()
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(trap.with_name("path"))}
    done = subprocess.run(
        [sys.executable, *(["-I"] if isolated else []), str(program), str(work)],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [each.read_text() for each in trap.iterdir() if each.name.isdigit()]


@pytest.mark.parametrize("helper", [WORKER], ids=["worker"])
def test_python_path_counts_for_a_helper_that_imports_the_users_code(helper: str, trap: Path) -> None:
    """`mpsguard pool` is installed, and what its workers prepare need not be."""
    assert len(run(helper, trap, isolated=True)) == 1


@STARTED
def test_python_path_counts_for_no_helper_of_an_isolated_program(helper: str, trap: Path) -> None:
    assert run(helper, trap, isolated=True) == []


@STARTED
def test_the_trap_is_one(helper: str, trap: Path) -> None:
    """A program that was found by PYTHONPATH has helpers that are, and each of them began."""
    commands = run(helper, trap, isolated=False)
    helpers = [command for command in commands if "program.py" not in command]
    assert len(helpers) == (2 if helper == KEEPER else 1), commands
