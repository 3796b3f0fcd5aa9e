"""The pool's end of a channel to a process of its own."""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from mpsguard.linux.descriptors.fd_closer import of_strangers
from mpsguard.linux.sockets import seqpacket

T = TypeVar("T")


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
        """Return the next message, or None at the end.

        Raises:
            BlockingIOError: there is none.
            msgspec.DecodeError: it is invalid.
        """
        try:
            packet = seqpacket.receive(self.socket, self._limit)
        except BlockingIOError:
            raise
        except OSError:
            return None
        of_strangers(packet.fds)
        if packet.end:
            return None
        if packet.truncated:
            raise msgspec.DecodeError("too long")
        return self._decode(packet.data)

    def end(self) -> None:
        """Let the process end in order: it does so at the end of the channel."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; safe to call twice."""
        self.socket.close()
