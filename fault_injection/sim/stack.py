"""One simulated control daemon with its servers and clients, for tests and demonstrations.

Everything runs as real processes, through the programs a person would start; leaving the `with` block ends them all.
"""

import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from fault_injection.sim.script import Script

BIN = Path(__file__).parent / "bin"
_ROOT = Path(__file__).parents[2]
_FLOCK = struct.Struct("hhqqi4x")
_PATIENCE_S = 20.0


class SimulatedClient:
    """A running `fault_injection.sim.client` process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._unread = b""
        self.events: list[dict[str, Any]] = []

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def wait_for(self, event: str) -> dict[str, Any]:
        """Read its output up to an event; EOFError when it ends without, TimeoutError when it falls silent."""
        for line in self._lines():
            if line["event"] == event:
                return line
        raise EOFError(f"client {self.pid} ended without {event}: {self.events}")

    def finish(self) -> int:
        """Wait for its end; the exit status."""
        for _line in self._lines():
            continue
        return self.process.wait(_PATIENCE_S)

    @property
    def error(self) -> int | None:
        """The CUDA error it died of, known after `finish`."""
        return self.events[-1].get("error") if self.events else None

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Lines as they come; TimeoutError when none comes for too long."""
        out = self.process.stdout
        assert out is not None
        while True:
            text, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                line: dict[str, Any] = json.loads(text)
                self.events.append(line)
                yield line
                continue
            if not select.select([out], [], [], _PATIENCE_S)[0]:
                raise TimeoutError(f"client {self.pid} says nothing: {self.events}")
            chunk = os.read(out.fileno(), 65536)
            if not chunk:
                return
            self._unread += chunk


class SimulatedStack:
    """A pipe directory, a log directory, and what runs on them."""

    def __init__(self, root: Path, *, multiuser: bool = False) -> None:
        self.pipes, self.logs = root / "pipe", root / "log"
        for directory in (self.pipes, self.logs):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o755)
        self.script = Script(self.pipes)
        self._multiuser = multiuser
        self._clients: list[SimulatedClient] = []
        self._daemons: list[int] = []

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to meet this daemon."""
        return {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
            "MPSGUARD_SIM_PYTHON": sys.executable,
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }

    def start(self) -> Self:
        """Start the daemon; it listens when this returns."""
        flags = ["-d", "-M"] if self._multiuser else ["-d"]
        self.program(*flags).check_returncode()
        self._daemons.append(self.daemon_pid())
        return self

    def program(
        self, *arguments: str, lines: str = "", timeout: float = _PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """Run `nvidia-cuda-mps-control` with these arguments and this standard input."""
        return subprocess.run(
            [BIN / "nvidia-cuda-mps-control", *arguments],
            input=lines,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def command(self, line: str) -> list[str]:
        """Say one command line through the UI; the reply lines."""
        return self.program(lines=line + "\n").stdout.splitlines()

    def client(self, *arguments: str, uid: int | None = None) -> SimulatedClient:
        """Start a client process; under another uid it runs on the system's own Python."""
        process = subprocess.Popen(
            ["/usr/bin/python3" if uid else sys.executable, "-m", "fault_injection.sim.client", *arguments],
            cwd=_ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
        client = SimulatedClient(process)
        self._clients.append(client)
        return client

    def busy_client(self, *arguments: str, uid: int | None = None) -> SimulatedClient:
        """Start a client and wait until it runs kernels."""
        client = self.client(*arguments, uid=uid)
        client.wait_for("started")
        return client

    def daemon_pid(self) -> int:
        """Return the pid that holds the lock of the pipe directory; raise ProcessLookupError if there is none."""
        fd = os.open(self.pipes / "control_lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            held = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        finally:
            os.close(fd)
        kind, _whence, _start, _length, pid = _FLOCK.unpack(held)
        if kind == fcntl.F_UNLCK:
            raise ProcessLookupError
        return int(pid)

    def server_pids(self) -> list[int]:
        """The daemon's servers, as `get_server_list` tells."""
        return [int(line) for line in self.command("get_server_list")]

    def stop(self) -> None:
        """End everything that was started here."""
        for client in self._clients:
            client.process.kill()
            client.process.wait()
            if client.process.stdout is not None:
                client.process.stdout.close()
        for daemon in self._daemons:
            for pid in [*_children(daemon), daemon]:
                kill(pid)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exception: object) -> None:
        self.stop()


def kill(pid: int) -> None:
    """SIGKILL a process, child or not, and wait until it is gone."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], _PATIENCE_S)
        finally:
            os.close(pidfd)


def gone(pid: int, *, within: float = _PATIENCE_S) -> bool:
    """Wait for a process to exit."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], within)[0])
    finally:
        os.close(pidfd)


def eventually(condition: Callable[[], bool], *, within: float = _PATIENCE_S) -> bool:
    """Ask until it holds; only for what no descriptor tells."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return False


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []
