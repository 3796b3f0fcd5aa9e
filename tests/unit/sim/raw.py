"""A UI and a client spoken by hand, message by message, with any credentials."""

from __future__ import annotations

import array
import os
import socket
import struct
from pathlib import Path

from tests.harness.waiting import PATIENCE


def connect(path: Path, timeout: float = PATIENCE) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(timeout)
    sock.connect(str(path))
    return sock


def send_credentials(sock: socket.socket, *, uid: int | None = None) -> None:
    own = struct.pack("3i", os.getpid(), os.getuid() if uid is None else uid, os.getgid())
    sock.sendmsg([b"OUTBCRED\0"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, own)])


def identify(sock: socket.socket, kind: int, *, uid: int | None = None) -> None:
    send_credentials(sock, uid=uid)
    sock.send(struct.pack("i", kind))


def say(sock: socket.socket, *lines: str) -> None:
    for line in lines:
        text = line.encode() + b"\n\0"
        sock.send(struct.pack("q", len(text)))
        sock.send(text)
    sock.send(struct.pack("q", 0))


def replies(sock: socket.socket) -> tuple[list[str], int]:
    """Reply lines and the exit status that ends them."""
    lines: list[str] = []
    while True:
        data = sock.recv(65536)
        kind, text = struct.unpack("i", data[:4])[0], data[4:]
        if kind == 1:
            return lines, struct.unpack("i", text)[0]
        lines.append(text.decode())


def ask(path: Path, *lines: str, uid: int | None = None) -> list[str]:
    """A whole UI session."""
    with connect(path) as sock:
        assert sock.recv(64) == b"OUTBHELL\0"
        identify(sock, 4, uid=uid)
        say(sock, *lines)
        answer, status = replies(sock)
        assert status == 0
        return answer


def handed_over(sock: socket.socket) -> socket.socket:
    """The socket to the server that the daemon passes to a client."""
    data, ancillary, _flags, _address = sock.recvmsg(64, socket.CMSG_SPACE(4))
    assert data == b"OUTBCUFD\0"
    ((_level, kind, payload),) = ancillary
    assert kind == socket.SCM_RIGHTS
    return socket.socket(fileno=array.array("i", payload)[0])


def hung_up(sock: socket.socket) -> bool:
    """Whether the daemon closed the connection; with something of ours unread that shows as a reset."""
    try:
        return sock.recv(64) == b""
    except ConnectionResetError:
        return True
