"""The public pipe directory, as clients and the vendor's command line expect it: sockets, lock, FIFO, pid file.

Its contents and their modes are those of the stock daemon of driver 580.159.04: `control` 0666, `control_privileged`
0755 (only the owner may connect), `control_lock` with a POSIX write lock for life, the FIFO `log` 0777, and the pid
file without a newline.

Any user may lock a file of mode 0666, and keep the lock. So a private lock of the guard excludes other guards, and
`control_lock` only tells stock daemons that the directory is in use.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.lanes.control_process import PID_FILE
from mpsguard.linux.descriptors import fd_closer
from mpsguard.linux.files.file_lock import FileLock, LockHeldError
from mpsguard.linux.processes import procfs
from mpsguard.linux.sockets import seqpacket

_BACKLOG: Final = 4096
"""Connections in the kernel's queue; net.core.somaxconn caps it. Clients wait there while a guard restarts."""

MODES: Final = {"control": 0o666, "control_privileged": 0o755}
"""The public sockets and their modes."""


class PublicDirectoryError(Exception):
    """The directory cannot be opened; one line says why."""


class PublicDirectory:
    """Owns the contents of one public pipe directory. Sockets from the service manager are used, never replaced."""

    def __init__(self, path: Path, lock: Path) -> None:
        """``lock`` is the guard's private lock file, in a directory where only the guard may create or open files."""
        self.path = path
        self._own_lock_path = lock
        self._own_lock: FileLock | None = None
        self._opened = False
        """Whether the directory is open, so that `close` removes its FIFO and its pid file."""
        self.sockets: dict[str, socket.socket] = {}
        self.held = False
        """Whether the service manager holds the sockets too, so that clients wait while no guard runs."""
        self._lock: FileLock | None = None
        self._fifo = -1

    def open(self, given: dict[str, socket.socket]) -> None:
        """Open the directory: lock, sockets, FIFO, pid file.

        Args:
            given: listening sockets by path; those of this directory are removed from it and used.

        Raises:
            PublicDirectoryError: it cannot be opened; nothing is kept.
        """
        try:
            self._make_directory()
            self.held = True
            self._own_lock = FileLock.take(self._own_lock_path, 0o600)
            self._lock = self._take_public_lock()
            self._opened = True
            for name, mode in MODES.items():
                address = self.path / name
                sock = given.pop(str(address), None)
                self.held &= sock is not None
                self.sockets[name] = sock or self._listen(address, mode)
                # Peers that connected to an inherited socket before this may have sent descriptors: `StrangerStream`.
                seqpacket.let_descriptors_come(self.sockets[name], allowed=False)
            self._open_fifo()
            self._write_pid()
        except LockHeldError as error:
            self.close()
            raise PublicDirectoryError(
                f"{self.path}: process {error.pid} holds {error.path.name}; another guard or MPS control daemon "
                f"runs here (stop it: echo quit | CUDA_MPS_PIPE_DIRECTORY={self.path} nvidia-cuda-mps-control)"
            ) from None
        except OSError as error:
            self.close()
            raise PublicDirectoryError(f"{error.filename or self.path}: {error.strerror}") from None

    def close(self) -> None:
        """Close and unlock everything. The sockets' files stay, as the stock daemon leaves them."""
        for sock in self.sockets.values():
            if seqpacket.takes_descriptors(sock):
                # This also closes the connections in its backlog, and the descriptors that their peers have sent.
                fd_closer.of_strangers((sock.detach(),))
            sock.close()
        self.sockets.clear()
        if self._fifo >= 0:
            asyncio.get_running_loop().remove_reader(self._fifo)
            os.close(self._fifo)
            self._fifo = -1
        if self._opened:
            for name in ("log", PID_FILE):
                with suppress(OSError):
                    (self.path / name).unlink()
            self._opened = False
        if self._own_lock is not None:
            self._own_lock.close()
            self._own_lock = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_public_lock(self) -> FileLock | None:
        """Take the lock that stock daemons check; None if it is held by a user that cannot run a daemon here.

        The directory belongs to root or the guard's user: a daemon of another user could create no socket in it.
        """
        try:
            return FileLock.take(self.path / "control_lock", 0o666)
        except LockHeldError as error:
            with suppress(ProcessLookupError):
                if error.pid and procfs.uid(error.pid)[0] not in (0, os.geteuid()):
                    return None
            raise

    def _make_directory(self) -> None:
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        status = self.path.stat()
        # The directory's owner can replace the sockets, so it must be root or the guard's user.
        if status.st_uid not in (0, os.geteuid()):
            raise PermissionError(1, f"owned by uid {status.st_uid}, must be root's or the guard's", str(self.path))

    def _listen(self, path: Path, mode: int) -> socket.socket:
        # The lock is held, so no process listens on a socket that is left here.
        with suppress(FileNotFoundError):
            path.unlink()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            seqpacket.let_descriptors_come(sock, allowed=False)
            sock.bind(str(path))
            path.chmod(mode)
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
        return sock

    def _open_fifo(self) -> None:
        path = self.path / "log"
        with suppress(FileNotFoundError):
            path.unlink()
        os.mkfifo(path, 0o777)
        path.chmod(0o777)
        # Read-write: no end of file when the last writer leaves, and a writer never blocks for want of a reader.
        self._fifo = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        if not stat.S_ISFIFO(os.fstat(self._fifo).st_mode):
            raise OSError(17, "is no FIFO", str(path))
        asyncio.get_running_loop().add_reader(self._fifo, self._drain)

    def _drain(self) -> None:
        # No client of 535 or 580 writes here (their servers use the lane's own FIFO): all input is dropped.
        with suppress(BlockingIOError):
            os.read(self._fifo, 64 * 1024)

    def _write_pid(self) -> None:
        path = self.path / PID_FILE
        with suppress(FileNotFoundError):
            path.unlink()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            os.write(fd, str(os.getpid()).encode())
        finally:
            os.close(fd)


def adopt_sockets(fds: Mapping[int, str]) -> dict[str, socket.socket]:
    """Return the SEQPACKET listeners among inherited descriptors, by their path; close the others."""
    found: dict[str, socket.socket] = {}
    for fd in fds:
        try:
            sock = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            continue
        path = sock.getsockname() if sock.family == socket.AF_UNIX else None
        listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if sock.type == socket.SOCK_SEQPACKET and isinstance(path, str) and path and listening and path not in found:
            sock.setblocking(False)
            found[path] = sock
        else:
            sock.close()
    return found
