"""The public pipe directory, as a client and the vendor's command line find it: sockets, lock, FIFO, pid file.

What the stock daemon puts there and with which modes was read off driver 580.159.04: `control` 0666,
`control_privileged` 0755 (only the owner may connect), `control_lock` with a POSIX write lock for life, the FIFO `log`
0777, and the pid file without a newline.

Anybody may lock a file of mode 0666, and keep it. So what keeps two guards apart is a lock of the guard's own, and
`control_lock` only tells stock daemons that the directory is taken.
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
from mpsguard.linux import fd_closer, procfs, seqpacket
from mpsguard.linux.file_lock import FileLock, LockHeldError

_BACKLOG: Final = 4096
"""Connections the kernel queues for us; net.core.somaxconn caps it. They are what waits while a guard restarts."""

_MODES: Final = {"control": 0o666, "control_privileged": 0o755}


class PublicDirectoryError(Exception):
    """The directory cannot be ours; one line says why."""


class PublicDirectory:
    """Owns what lies in one public pipe directory. Sockets given by the service manager are used, never made anew."""

    def __init__(self, path: Path, lock: Path) -> None:
        """``lock`` is a file of the guard's own, in a directory where nobody else may make or open one."""
        self.path = path
        self._own_lock_path = lock
        self._own_lock: FileLock | None = None
        self._taken = False
        """Whether the directory is ours, and what is not a socket in it goes with us."""
        self.sockets: dict[str, socket.socket] = {}
        self.held = False
        """Whether the service manager holds the sockets too, so that clients wait while no guard runs."""
        self._lock: FileLock | None = None
        self._fifo = -1

    def open(self, given: dict[str, socket.socket]) -> None:
        """Take the directory: lock, sockets, FIFO, pid file; PublicDirectoryError, with nothing kept, if that fails.

        ``given`` are listening sockets by path; those that are this directory's are taken over from it.
        """
        try:
            self._make_directory()
            self.held = True
            self._own_lock = FileLock.take(self._own_lock_path, 0o600)
            self._lock = self._take_public_lock()
            self._taken = True
            for name, mode in _MODES.items():
                address = self.path / name
                sock = given.pop(str(address), None)
                self.held &= sock is not None
                self.sockets[name] = sock or self._listen(address, mode)
                # Who connected to a socket that was handed over before this may have sent some: `StrangerStream`.
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
        """Give all of it back. The sockets' names stay, as the stock daemon leaves them: nobody listens there then."""
        for sock in self.sockets.values():
            if seqpacket.takes_descriptors(sock):
                # With it go those in its backlog, and the descriptors that they have sent.
                fd_closer.of_strangers((sock.detach(),))
            sock.close()
        self.sockets.clear()
        if self._fifo >= 0:
            asyncio.get_running_loop().remove_reader(self._fifo)
            os.close(self._fifo)
            self._fifo = -1
        if self._taken:
            for name in ("log", PID_FILE):
                with suppress(OSError):
                    (self.path / name).unlink()
            self._taken = False
        if self._own_lock is not None:
            self._own_lock.close()
            self._own_lock = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_public_lock(self) -> FileLock | None:
        """The lock that stock daemons look at; None if a user holds it who can run no daemon here.

        The directory is root's or ours, so that a daemon of anybody else could make no socket in it.
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
        # Who owns the directory can swap the sockets: only root or we may.
        if status.st_uid not in (0, os.geteuid()):
            raise PermissionError(1, f"owned by uid {status.st_uid}, must be root's or the guard's", str(self.path))

    def _listen(self, path: Path, mode: int) -> socket.socket:
        # We hold the lock, so nobody listens on a socket that is left here.
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
        # No client of 535 or 580 writes here (their servers use the lane's own FIFO): whatever comes is dropped.
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
    """The SEQPACKET listeners among descriptors handed over, by the path they are bound to; the others are closed."""
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
