"""A process that the pool executes: a worker, or the template of its workers."""

import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mpsguard.images.pool.address import SOCKET_VARIABLE
from mpsguard.linux.processes.helper_process import HelperProcess, module_command


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
        self._process = HelperProcess(
            module_command(module, str(channel.fileno()), *arguments, imports_users_code=True),
            # It runs the user's own code, in the user's environment and directory; it looks at the latter before it
            # imports from there.
            {**os.environ, SOCKET_VARIABLE: str(pool)},
            fds=(channel.fileno(),),
            stdout=None,
            stderr=None,
            directory=None,
        )
        self.pid = self._process.pid
        self.pidfd = self._process.pidfd

    def kill(self) -> None:
        """SIGKILL it, and its process group; it has not been reaped."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Give all back after its end; what it left of its process group ends too."""
        self.kill()
        self._process.wait()
