"""AF_UNIX SOCK_SEQPACKET messages with credentials and file descriptors.

One packet is one message of the MPS handshake. Received descriptors are close-on-exec and belong to the caller.
"""

import array
import socket
import struct
from typing import Final, NamedTuple

from mpsguard.linux.identity import Credentials

_UCRED: Final = struct.Struct("3i")
SO_PEERPIDFD: Final = 77
"""Linux 6.5, asm-generic/socket.h: a pidfd of the process that connected, free of any race with pid reuse."""

SO_PASSRIGHTS: Final = 83
"""Linux 6.16, asm-generic/socket.h: whether peers may send descriptors here. Connections inherit it from the listener
at connect(2)."""

MAX_FDS: Final = 16
"""Descriptors accepted in one packet, unless more are asked for; the vendor's handshake passes one."""
KERNEL_MAX_FDS: Final = 253
"""Descriptors that the kernel passes in one packet at most (unix(7), SCM_MAX_FD)."""


class Packet(NamedTuple):
    """One received message. End of file is a packet without data, sender and descriptors."""

    data: bytes
    sender: Credentials | None
    fds: tuple[int, ...]
    truncated: bool

    @property
    def end(self) -> bool:
        """True if the peer closed its side."""
        return not self.data and self.sender is None and not self.fds


def new_socket() -> socket.socket:
    """A non-blocking SEQPACKET socket that asks the kernel for the sender of every message."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return sock


def receive(sock: socket.socket, limit: int, *, max_fds: int = MAX_FDS, flags: int = 0) -> Packet:
    """Take one packet of at most ``limit`` bytes; raises BlockingIOError when none is there.

    A longer packet, or one with more than ``max_fds`` descriptors, comes back with ``truncated`` set; the kernel has
    dropped the rest. The descriptors that did arrive are in ``fds`` all the same and must be closed. ``flags`` are
    added to those of recvmsg(2). A peer that closed without reading all we sent is heard to its end, as any other.
    """
    space = socket.CMSG_SPACE(_UCRED.size) + socket.CMSG_SPACE(max_fds * 4)
    flags |= socket.MSG_CMSG_CLOEXEC
    try:
        data, ancillary, got, _ = sock.recvmsg(limit, space, flags)
    except ConnectionResetError:
        # It left something of ours unread. That error comes once, before what the peer itself had sent
        # (__skb_try_recv_datagram looks at sk_err first): its last words are still to be had.
        data, ancillary, got, _ = sock.recvmsg(limit, space, flags)
    sender: Credentials | None = None
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        elif kind == socket.SCM_CREDENTIALS and len(payload) >= _UCRED.size:
            sender = Credentials(*_UCRED.unpack_from(payload))
    return Packet(data, sender, tuple(fds), bool(got & (socket.MSG_TRUNC | socket.MSG_CTRUNC)))


def send(sock: socket.socket, data: bytes, *, sender: Credentials | None = None, fds: tuple[int, ...] = ()) -> None:
    """Send one packet, whole or not at all.

    ``sender`` other than this process needs CAP_SYS_ADMIN (pid), CAP_SETUID and CAP_SETGID, and the pid must live:
    PermissionError and ProcessLookupError say so (unix(7), SCM_CREDENTIALS).
    """
    ancillary: list[tuple[int, int, bytes]] = []
    if sender is not None:
        ancillary.append((socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _UCRED.pack(sender.pid, sender.uid, sender.gid)))
    if fds:
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes()))
    sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def peer(sock: socket.socket) -> Credentials:
    """Return the process at the other end when the connection was made, or when ``listen`` was called."""
    return Credentials(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def peer_pidfd(sock: socket.socket) -> int | None:
    """A pidfd of the peer, owned by the caller; None where the kernel has none to give (before 6.5, or peer reaped)."""
    try:
        return int(sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
    except OSError:
        return None


def let_descriptors_come(sock: socket.socket, *, allowed: bool) -> bool:
    """Let the peer of a socket send descriptors, or not; connections inherit it from their listener.

    Where they are not allowed, the peer's sendmsg(2) with SCM_RIGHTS fails (EPERM), and nothing is queued.

    Returns:
        Whether the kernel knows the option. Before Linux 6.16 they always come.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, int(allowed))
    except OSError:
        return False
    return True


def kernel_refuses_descriptors() -> bool:
    """Whether this kernel has SO_PASSRIGHTS."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return let_descriptors_come(probe, allowed=False)


def may_impersonate() -> bool:
    """Whether this process may send any living process's credentials as its own (CAP_SYS_ADMIN, SETUID, SETGID)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        try:
            send(ours, b"?", sender=Credentials(1, 65534, 65534))
        except OSError:
            return False
    return True
