"""The process `mpsguard serve`: started, ready, killed, stopped; and the public sockets that outlive it."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.harness import listen_exec
from tests.harness.ready_socket import ReadySocket

REPOSITORY: Final = Path(__file__).resolve().parents[2]
START: Final = 60.0
"""Seconds a guard may take until READY=1, its lanes included; it takes about one on an idle machine."""
STOP: Final = 30.0
"""Seconds a guard may take to end after SIGTERM."""
PUBLIC_SOCKETS: Final = {"control": 0o666, "control_privileged": 0o755}
"""The public sockets and their modes, as a stock daemon has them."""


class GuardStartError(Exception):
    """The guard ended, or did not say READY=1 in time; the message has its last words."""


class GuardProcess:
    """Owns one guard's process, and the public sockets where it holds them as a service manager would.

    The process comes and goes; the lanes that it started stay until their owner ends them.

    Args:
        config: The configuration file.
        directory: Where the log `guard.log` and, while it starts, the readiness socket lie. Short: a socket's path
            has at most 107 bytes (unix(7)).
        module: What is run; some tests run a guard over a stand-in for the driver.
        tree: The source tree it is run from; some tests run another version's.
    """

    def __init__(
        self, config: Path, directory: Path, *, module: str = "mpsguard.cli.guard", tree: Path = REPOSITORY
    ) -> None:
        self.config = config
        self.module = module
        self.tree = tree
        self.log = directory / "guard.log"
        self._ready = directory / "ready"
        self._popen: subprocess.Popen[bytes] | None = None
        self._listeners: list[socket.socket] = []

    @property
    def popen(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        assert self._popen is not None, "no guard was started"
        return self._popen

    @property
    def runs(self) -> bool:
        """Whether a guard was started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    def hold_sockets(self, public: Path) -> None:
        """Do what `mpsguard.socket` does: make the public sockets and hand them to every guard started from now on."""
        public.mkdir(mode=0o755, exist_ok=True)
        for name, mode in PUBLIC_SOCKETS.items():
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            self._listeners.append(listener)
            listener.bind(str(public / name))
            (public / name).chmod(mode)
            listener.listen(4096)

    def start(self, environment: Mapping[str, str], *, ready: bool = True) -> int:
        """Start a guard; its pid.

        Args:
            environment: All its variables but those of a service manager.
            ready: Whether to wait for READY=1.

        Raises:
            GuardStartError: It ended first, or is not ready within `START` seconds.
        """
        arguments = [sys.executable, "-m", self.module, "serve", "--config", str(self.config)]
        variables = {**environment, "NOTIFY_SOCKET": str(self._ready)}
        fds = [listener.fileno() for listener in self._listeners]
        if fds:
            # By its path: another version's tree need not have it.
            arguments = [sys.executable, listen_exec.__file__, ",".join(map(str, fds)), *arguments]
            variables["LISTEN_FDNAMES"] = ":".join(PUBLIC_SOCKETS)
        with ReadySocket(self._ready) as ready_socket:
            with self.log.open("ab") as log:
                self._popen = subprocess.Popen(
                    arguments,
                    env=variables,
                    cwd=self.tree,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=fds,
                )
            if ready:
                self._wait_until_ready(ready_socket, self._popen)
        return self._popen.pid

    def kill(self) -> None:
        """SIGKILL, and to no other process; returns once it is gone."""
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status. subprocess.TimeoutExpired if it has not ended within `STOP` seconds."""
        self.popen.terminate()
        return self.popen.wait(STOP)

    def end(self) -> None:
        """End the guard if it runs: SIGTERM, and SIGKILL if it has not ended within `STOP` seconds."""
        if self.runs:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()

    def close(self) -> None:
        """End the guard, and close the public sockets."""
        try:
            self.end()
        finally:
            for listener in self._listeners:
                listener.close()
            self._listeners.clear()

    def _wait_until_ready(self, ready_socket: ReadySocket, process: subprocess.Popen[bytes]) -> None:
        pidfd = os.pidfd_open(process.pid)
        try:
            is_ready = ready_socket.wait(pidfd, START)
        except TimeoutError as error:
            raise GuardStartError(f"guard: {error}; {self._last_words()}") from None
        finally:
            os.close(pidfd)
        if not is_ready:
            raise GuardStartError(f"the guard ended with {process.wait()} before it was ready; {self._last_words()}")

    def _last_words(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-8:])
