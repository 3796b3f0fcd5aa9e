"""Messages on the MPS sockets: AF_UNIX SOCK_SEQPACKET, credentials and descriptors beside the data.

Words and order as seen on driver 580.159.04.
"""

import array
import os
import socket
import struct
from enum import IntEnum
from typing import NamedTuple, Self

HELLO = b"OUTBHELL\0"
CREDENTIALS = b"OUTBCRED\0"
DESCRIPTOR = b"OUTBCUFD\0"

_UCRED = struct.Struct("3i")
_INT = struct.Struct("i")
_INT64 = struct.Struct("q")
_UINT64 = struct.Struct("Q")
_LARGEST = 65536
_ANCILLARY = socket.CMSG_SPACE(_UCRED.size) + socket.CMSG_SPACE(16 * _INT.size)


class Peer(IntEnum):
    """The kind of a peer: the int32 after the credentials."""

    SERVER = 1
    CLIENT = 2
    DEBUGGEE = 3
    """A client under a debugger; that it is served as a client is an assumption."""
    UI = 4


class Identity(NamedTuple):
    """The sender of a message, verified by the kernel (SCM_CREDENTIALS)."""

    pid: int
    uid: int
    gid: int


class Message(NamedTuple):
    """One datagram; no data means that the peer is gone."""

    data: bytes
    sender: Identity | None
    fds: tuple[int, ...]


class Channel:
    """A connected SEQPACKET socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    @classmethod
    def connect(cls, path: str) -> Self:
        """Open a connection; raise OSError if no process listens."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            sock.connect(path)
        except OSError:
            sock.close()
            raise
        return cls(sock)

    @classmethod
    def adopt(cls, fd: int) -> Self:
        """Take a descriptor that came in a message."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """The descriptor, for poll."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close; a second call does nothing."""
        self._sock.close()

    def send(self, *parts: bytes, fd: int | None = None) -> bool:
        """Send one message; false when the peer is gone."""
        ancillary = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            self._sock.sendmsg(parts, ancillary, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionError):
            return False
        return True

    def send_credentials(self) -> bool:
        """Send this process's own credentials."""
        own = _UCRED.pack(os.getpid(), os.getuid(), os.getgid())
        try:
            self._sock.sendmsg([CREDENTIALS], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, own)], socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionError):
            return False
        return True

    def send_int(self, value: int) -> bool:
        """Send an int32."""
        return self.send(_INT.pack(value))

    def send_int64(self, value: int) -> bool:
        """Send the lowest 64 bits of a number as an int64."""
        return self.send(_UINT64.pack(value % (1 << 64)))

    def receive(self, *, wait: bool = True) -> Message:
        """Take the next message; blocks unless told otherwise (then BlockingIOError)."""
        try:
            data, ancillary, _flags, _address = self._sock.recvmsg(
                _LARGEST, _ANCILLARY, socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
            )
        except ConnectionError:
            return Message(b"", None, ())
        sender: Identity | None = None
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level != socket.SOL_SOCKET:
                continue
            if kind == socket.SCM_CREDENTIALS:
                sender = Identity(*_UCRED.unpack(payload[: _UCRED.size]))
            elif kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        return Message(data, sender, tuple(fds))

    def receive_int(self) -> int | None:
        """Take an int32; nothing when the peer is gone or sent something else."""
        return _number(self.receive(), _INT)

    def receive_uint64(self) -> int | None:
        """Take an int64 as a number without a sign; nothing when the peer is gone or sent something else."""
        return _number(self.receive(), _UINT64)

    def receive_int64(self) -> int | None:
        """Take an int64; nothing when the peer is gone or sent something else."""
        return _number(self.receive(), _INT64)


def _number(message: Message, layout: struct.Struct) -> int | None:
    for fd in message.fds:
        os.close(fd)
    if len(message.data) != layout.size:
        return None
    value: int = layout.unpack(message.data)[0]
    return value
