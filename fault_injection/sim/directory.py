"""The pipe directory: sockets, lock, FIFO and pid file, with the modes of driver 580.159.04."""

import fcntl
import os
import socket
from pathlib import Path

DEFAULT_PIPES = "/tmp/nvidia-mps"  # noqa: S108  the vendor's own default
DEFAULT_LOGS = "/var/log/nvidia-mps"
_BACKLOG = 128


class AlreadyRunningError(Exception):
    """Another daemon holds the lock of this directory."""


def pipe_directory() -> Path:
    """Where clients and daemons meet."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPES).absolute()


def log_directory() -> Path:
    """Where the two log files go."""
    return Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY") or DEFAULT_LOGS).absolute()


class PipeDirectory:
    """The daemon's view of its directory; the lock is held for life."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o777, parents=True, exist_ok=True)
        self._lock = os.open(root / "control_lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AlreadyRunningError from error
        os.fchmod(self._lock, 0o666)

    @property
    def fifo(self) -> Path:
        """The FIFO that log records go through."""
        return self.root / "log"

    @property
    def control(self) -> Path:
        """The public socket."""
        return self.root / "control"

    def listen(self) -> tuple[socket.socket, socket.socket]:
        """Bind `control` and `control_privileged`."""
        privileged = _listen(self.root / "control_privileged")
        public = _listen(self.control)
        self.control.chmod(0o666)
        (self.root / "control_privileged").chmod(0o755)
        return public, privileged

    def write_pid(self) -> None:
        """Write the pid file: digits, no newline."""
        (self.root / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))

    def remove_pid(self) -> None:
        """Remove the pid file, the first thing to go at quit."""
        (self.root / "nvidia-cuda-mps-control.pid").unlink(missing_ok=True)

    def remove_fifo(self) -> None:
        """Remove the FIFO, the last thing to go at quit; sockets and lock file stay."""
        self.fifo.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    sock.bind(str(path))
    sock.listen(_BACKLOG)
    return sock
