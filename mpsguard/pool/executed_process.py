"""A process that the pool executes: a worker, or the template of its workers."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mpsguard.pool.address import SOCKET_VARIABLE


class ExecutedProcess:
    """Owns the process and its pidfd. It leads a process group, which ends with it."""

    def __init__(self, module: str, channel: socket.socket, arguments: Sequence[str], pool: Path) -> None:
        """Start it; raise OSError.

        Args:
            module: of this package; its arguments are the descriptor of its channel, and ``arguments``.
            channel: stays owned by the caller.
            arguments: follow.
            pool: the pool's socket.
        """
        self._process = subprocess.Popen(
            # -P: the process looks at the directory before it imports anything from there.
            [sys.executable, "-P", "-m", module, str(channel.fileno()), *arguments],
            stdin=subprocess.DEVNULL,
            env={**os.environ, SOCKET_VARIABLE: str(pool)},
            pass_fds=(channel.fileno(),),
            # Signals to the pool's group, such as Ctrl-C, are not for it: the end of the channel ends it.
            start_new_session=True,
        )
        self.pid = self._process.pid
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except BaseException:
            self.kill()
            self._process.wait()
            raise

    def kill(self) -> None:
        """SIGKILL it, and its process group; it has not been reaped."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Give all back after its end; what it left of its process group ends too."""
        self.kill()
        self._process.wait()
        os.close(self.pidfd)
