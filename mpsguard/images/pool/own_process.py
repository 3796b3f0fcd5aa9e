"""A process of the pool's own: how it is executed, and the pool's end of its channel."""

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from mpsguard.images.pool.address import SOCKET_VARIABLE
from mpsguard.linux.descriptors.fd_closer import of_strangers
from mpsguard.linux.processes.helper_process import HelperProcess, module_command
from mpsguard.linux.sockets import seqpacket

T = TypeVar("T")


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


class Channel(Generic[T]):
    """Owns a SEQPACKET socket; packets come without descriptors."""

    def __init__(self, sock: socket.socket, limit: int, decode: Callable[[bytes], T]) -> None:
        """Take ownership of ``sock``. ``limit``: bytes of a packet."""
        seqpacket.let_descriptors_come(sock, allowed=False)
        sock.setblocking(False)
        self.socket: Final = sock
        self._limit = limit
        self._decode = decode

    def fileno(self) -> int:
        """Return the descriptor; -1 after `close`."""
        return self.socket.fileno()

    def send(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send a packet; raise OSError."""
        seqpacket.send(self.socket, data, fds=fds)

    def receive(self) -> T | None:
        """Return the next message; None if the process ends, or does not follow the protocol: then it has to end.

        Raises:
            BlockingIOError: there is none.
        """
        try:
            packet = seqpacket.receive(self.socket, self._limit)
        except BlockingIOError:
            raise
        except OSError:
            return None
        of_strangers(packet.fds)
        if packet.end or packet.truncated:
            return None
        try:
            return self._decode(packet.data)
        except msgspec.DecodeError:
            return None

    def end(self) -> None:
        """Let the process end in order: it does so at the end of the channel."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; safe to call twice."""
        self.socket.close()


@contextmanager
def new_channel(limit: int, decode: Callable[[bytes], T]) -> Iterator[tuple[Channel[T], socket.socket]]:
    """Make a channel for a block that starts the process at its other end; raise OSError.

    Yields:
        The pool's end, which is closed if the block fails, and the other one, which is closed behind it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(ours, limit, decode)
    try:
        with theirs:
            yield channel, theirs
    except BaseException:
        channel.close()
        raise
