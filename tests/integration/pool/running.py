"""A real `mpsguard pool` with a store of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.messages import ImageInTier
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.store import ImageStore
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import PATIENCE
from tests.unit.images.store.samples import commit, some_bytes

MIB = 1 << 20
DEATH = re.compile(r"mpsguard pool: worker \d+ ended while it prepared itself(: Killed \(signal 9\))?")
"""The signal is unknown if the template was killed, too."""


class RunningPool:
    """The process, and images for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "run" / "pool.sock"
        self.store = directory / "store"
        self.process: subprocess.Popen[str] | None = None
        self.said = ""
        """What it had said when it had ended, besides that it served."""
        self.workers_die = False
        """Whether workers are made to die while they prepare themselves, which it tells."""

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "MPSGUARD_POOL": str(self.path), "PYTHONPATH": str(REPOSITORY)}

    def start(self, *options: str) -> None:
        """Start it, and return when it serves."""
        command = [sys.executable, "-m", "mpsguard.cli.guard", "pool", "--socket", str(self.path), *options]
        self.process = subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "serves" in line, line

    def stop(self) -> str:
        """End it in order, and return what else it said."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, said
        self.process = None
        return said

    def kill(self) -> None:
        """End it by SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)
        self.process = None

    def connect(self) -> PoolConnection:
        return PoolConnection(self.path, deadline=PATIENCE)

    def make(self, name: str, *sizes: int, regions: Mapping[str, bytes] | None = None) -> Manifest:
        """Put an image into the store: regions ``r0``, ``r1``... of these sizes in bytes."""
        content = regions or {f"r{index}": some_bytes((name, index), size) for index, size in enumerate(sizes)}
        with ImageStore(self.store) as store:
            return commit(store, name, content)

    def listed(self) -> list[ImageInTier]:
        with self.connect() as pool:
            return list(pool.listing().images)


def refused(module: str, *arguments: str, cwd: Path = REPOSITORY, **variables: str) -> str:
    """What a process of a pool says that cannot begin and ends; ``module``: of `mpsguard.images.pool`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", f"mpsguard.images.pool.{module}", str(theirs.fileno()), *arguments],
            check=False,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    return line


@contextmanager
def running(directory: Path, *options: str) -> Iterator[RunningPool]:
    """A pool that serves; it has to end in order, without a word but of workers that are made to die."""
    pool = RunningPool(directory)
    pool.start(*options)
    try:
        yield pool
        pool.said = pool.stop()
    finally:
        if pool.process is not None:
            pool.process.kill()
            pool.process.communicate()
    lines = pool.said.splitlines()
    assert [line for line in lines if not (pool.workers_die and DEATH.fullmatch(line))] == []
