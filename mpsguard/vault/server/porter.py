"""The porter of one user: a process that owns the user's connections and receives what its clients send.

A foreign descriptor can make close(2) block for as long as its owner likes: a lingering TCP socket, a file of a FUSE
file system. So the vault never receives one. The porter receives packets, inspects their descriptors, passes those of
memory on, and leaves all others to a child that exits with them: an exiting process does not linger. A file system that
does not answer holds the porter, too: each close(2) of its files asks it, not the last alone. The number of these
children is limited; at the limit, only this user's connections are no longer read.

python -m mpsguard.vault.server.porter CHANNEL_DESCRIPTOR
"""

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from mpsguard.linux.descriptors import open_file
from mpsguard.linux.descriptors.open_file import MemoryKind
from mpsguard.linux.descriptors.unread import UnreadFds
from mpsguard.linux.identity import Credentials, is_root
from mpsguard.linux.processes import privileges
from mpsguard.linux.processes.privileges import Capability, PrivilegesError
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.seqpacket import KERNEL_MAX_FDS
from mpsguard.vault.server import frame as frames
from mpsguard.vault.server.frame import Flag, Frame
from mpsguard.vault.wire.wire import MAX_PACKET

CLOSERS_MOST: Final = 8
"""Maximum number of children that discard descriptors. One takes a millisecond; this many at once means that the user's
descriptors do not close."""

_STEP_DEADLINE: Final = 5.0
"""Seconds for one turn of the loop, which does not block on its own. The kernel may block this process while it drops a
foreign descriptor (a packet with more than fit): the process is then ended by SIGALRM."""

_LAST_WORDS_DEADLINE: Final = 2.0
"""Seconds for a client to make room for the vault's last message after the vault has ended the connection."""

_TICK: Final = 0.005
"""Seconds between two checks for what poll(2) cannot report: room for descriptors, and ended children."""

_ABOVE_ALL: Final = 1 << 30
"""Larger than any descriptor number (fs.nr_open)."""

_DENIED: Final = (
    *("execve", "execveat", "socket", "socketpair", "connect", "bind", "listen", "accept", "accept4"),
    *("kill", "tkill", "tgkill", "pidfd_send_signal", "pidfd_open", "pidfd_getfd", "prlimit64"),
    *("open", "openat2", "creat", "unlink", "unlinkat", "rename", "renameat", "renameat2", "link", "linkat"),
    *("symlink", "symlinkat", "mkdir", "mkdirat", "mknod", "mknodat", "chmod", "fchmod", "fchmodat", "chown", "fchown"),
    *("lchown", "fchownat", "truncate", "ftruncate", "setuid", "setgid", "setresuid", "setresgid", "setgroups"),
)
"""System calls denied in addition to those that the guard has denied: the porter only uses its connections. openat(2)
stays allowed because Python opens its modules with it."""

_ADMISSION: Final = struct.Struct("=QIi")


def admission(peer: Credentials) -> bytes:
    """Return the message that accompanies a connection: its peer."""
    return _ADMISSION.pack(peer.user, peer.uid, peer.pid)


class _Pending:
    """A packet that was read and not yet passed on; owns its descriptors, which are memory."""

    def __init__(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        self.data = data
        self.fds = fds

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = ()


class _Link:
    """One connection: the client's socket, and the porter's socket to the vault."""

    def __init__(self, client: socket.socket, vault: socket.socket, user: int, uid: int, pid: int) -> None:
        self.client = client
        self.vault = vault
        self.user = user
        self.peer = (pid, uid)
        # An older kernel may have queued descriptors already.
        self.tainted = not seqpacket.let_descriptors_come(client, allowed=False)
        self.expected = 0
        self.to_vault: _Pending | None = None
        self.to_client: _Pending | None = None
        self.unread = UnreadFds(client)
        self.ended = False
        self.cut_at: float | None = None
        self.closers: set[int] = set()

    def expect(self, count: int) -> None:
        self.expected = count
        self.tainted = True
        seqpacket.let_descriptors_come(self.client, allowed=True)

    def received(self, count: int) -> None:
        self.expected -= count
        if not self.expected:
            seqpacket.let_descriptors_come(self.client, allowed=False)


class Porter:
    """Owns the connections of one user until the vault closes the channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._links: dict[int, _Link] = {}
        """By both descriptors; after the client's socket was closed, by the vault's only."""

    def run(self) -> None:
        """Serve until the vault has closed the channel."""
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0)
            ready = self._wait()
            signal.setitimer(signal.ITIMER_REAL, _STEP_DEADLINE)
            if self._channel.fileno() in ready and not self._admit():
                return
            for link in set(self._links.values()):
                self._serve(link, ready)

    # --- waiting

    def _wait(self) -> set[int]:
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        ticking = False
        reading = self._may_read()
        for link in set(self._links.values()):
            ticking |= bool(link.closers) or link.cut_at is not None
            to_vault = select.POLLOUT if link.to_vault is not None else 0
            if link.ended:
                continue
            to_client = select.POLLIN if reading and link.to_vault is None else 0
            if link.to_client is None:
                to_vault |= select.POLLIN
            elif link.unread.has_room(len(link.to_client.fds)):
                to_client |= select.POLLOUT
            else:
                ticking = True
            # poll(2) reports a hangup on every call, so a socket is registered only if it can be served.
            if to_client:
                poller.register(link.client, to_client)
            if to_vault or link.cut_at is None:
                poller.register(link.vault, to_vault)
        return {fd for fd, _ in poller.poll(_TICK * 1000 if ticking else None)}

    # --- connections

    def _admit(self) -> bool:
        try:
            packet = seqpacket.receive(self._channel, 64, max_fds=2)
        except BlockingIOError:
            return True
        if packet.end or len(packet.fds) != 2:
            return False
        user, uid, pid = _ADMISSION.unpack(packet.data)
        client, vault = (socket.socket(fileno=fd) for fd in packet.fds)
        client.setblocking(False)
        vault.setblocking(False)
        link = _Link(client, vault, user, uid, pid)
        self._links[client.fileno()] = self._links[vault.fileno()] = link
        return True

    def _serve(self, link: _Link, ready: set[int]) -> None:
        self._reap(link)
        if not link.ended and (link.vault.fileno() in ready or link.to_client is not None):
            self._towards_client(link)
        if not link.ended and (link.client.fileno() in ready or link.to_vault is not None):
            self._towards_vault(link)
        if link.ended and not link.closers:
            # The client's descriptors are closed, so the place is free: the vault sees the end of its own socket.
            del self._links[link.vault.fileno()]
            link.vault.close()

    def _end(self, link: _Link) -> None:
        """Release the client; its queue may hold foreign descriptors, which only a child may close."""
        link.ended = True
        for pending in (link.to_vault, link.to_client):
            if pending is not None:
                pending.close()
        link.to_vault = link.to_client = None
        del self._links[link.client.fileno()]
        if link.tainted:
            self._close_in_child(link, (link.client.detach(),))
        else:
            link.client.close()

    # --- from the client

    def _towards_vault(self, link: _Link) -> None:
        if link.to_vault is None and self._may_read():
            self._receive_from_client(link)
        if link.to_vault is None:
            return
        try:
            seqpacket.send(link.vault, link.to_vault.data, fds=link.to_vault.fds)
        except BlockingIOError:
            return
        except OSError:
            self._end(link)
            return
        over = bool(frames.decode(link.to_vault.data).flags & Flag.END)
        link.to_vault.close()
        link.to_vault = None
        if over:
            self._end(link)

    def _may_read(self) -> bool:
        return sum(len(link.closers) for link in set(self._links.values())) < CLOSERS_MOST

    def _receive_from_client(self, link: _Link) -> None:
        try:
            packet = seqpacket.receive(link.client, MAX_PACKET, max_fds=KERNEL_MAX_FDS)
        except BlockingIOError:
            return
        except OSError:
            link.to_vault = _Pending(frames.encode(Frame(Flag.END, 0, b"")))
            return
        if packet.end:
            link.to_vault = _Pending(frames.encode(Frame(Flag.END, 0, b"")))
            return
        flags, fds = Flag(0), packet.fds
        if packet.truncated:
            flags |= Flag.TRUNCATED
        sender = packet.sender
        # Pid 0: sent before SO_PASSCRED was set. The connection itself has been authenticated; this check is for a
        # child that uses its parent's connection.
        if sender is not None and sender.pid and (sender.pid, sender.uid) != link.peer:
            flags |= Flag.STRANGER
        if len(fds) > link.expected:
            flags |= Flag.UNASKED
        elif fds:
            link.received(len(fds))
        kinds = [open_file.describe(fd).kind for fd in fds]
        if MemoryKind.OTHER in kinds:
            flags |= Flag.FOREIGN
        elif not is_root(link.user) and not all(
            _is_fixed(fd) for fd, kind in zip(fds, kinds, strict=True) if kind is MemoryKind.HOST
        ):
            # The quota counts the size on arrival, so it must not change afterwards. Root has no such limit.
            flags |= Flag.GROWS
        if fds and flags & (Flag.STRANGER | Flag.UNASKED | Flag.FOREIGN | Flag.GROWS):
            self._close_in_child(link, fds)
            fds = ()
        link.to_vault = _Pending(frames.encode(Frame(flags, len(packet.fds), packet.data)), fds)

    # --- from the vault

    def _towards_client(self, link: _Link) -> None:
        if link.to_client is None and not self._receive_from_vault(link):
            self._end(link)
            return
        if link.to_client is None:
            return
        fds = link.to_client.fds
        if link.cut_at is None and _has_ended(link.vault):
            link.cut_at = time.monotonic() + _LAST_WORDS_DEADLINE
        if not link.unread.has_room(len(fds)):
            self._end_if_due(link)
            return
        try:
            seqpacket.send(link.client, link.to_client.data, fds=fds)
        except BlockingIOError:
            self._end_if_due(link)
            return
        except OSError:
            # What the client sent before it closed can still be read.
            pass
        link.unread.sent(len(fds))
        link.to_client.close()
        link.to_client = None

    def _receive_from_vault(self, link: _Link) -> bool:
        """Read the vault's next frame; return False if the vault has ended the connection."""
        try:
            packet = seqpacket.receive(link.vault, MAX_PACKET + frames.HEADER_BYTES, max_fds=KERNEL_MAX_FDS)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if packet.end:
            return False
        frame = frames.decode(packet.data)
        if frame.flags & Flag.EXPECT:
            link.expect(frame.rights)
        link.to_client = _Pending(frame.data, packet.fds)
        return True

    def _end_if_due(self, link: _Link) -> None:
        if link.cut_at is not None and time.monotonic() >= link.cut_at:
            self._end(link)

    # --- discarded descriptors

    def _close_in_child(self, link: _Link, fds: Sequence[int]) -> None:
        """Fork a child that holds only ``fds`` and exits. Closing the porter's own copies then does not linger."""
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            _keep_only((*fds, read_end))
            os.read(read_end, 1)
            os._exit(0)
        os.close(read_end)
        for fd in fds:
            os.close(fd)
        os.close(write_end)
        link.closers.add(pid)

    def _reap(self, link: _Link) -> None:
        for pid in list(link.closers):
            ended, _ = os.waitpid(pid, os.WNOHANG)
            if ended:
                link.closers.discard(pid)


def _is_fixed(fd: int) -> bool:
    """Return whether the sender has sealed a memfd against growing.

    Sealing it here would wait for the lock of the file, which the sender can hold; asking waits for nothing.
    """
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_GROW)
    except OSError:
        return False


def _has_ended(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLRDHUP)
    return bool(poller.poll(0))


def _keep_only(fds: Sequence[int]) -> None:
    """Close all other descriptors; the parent still has them open, so these closes do not linger."""
    start = 0
    for fd in sorted(fds):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, _ABOVE_ALL)


def main(channel: int) -> None:
    """Run the porter at the other end of ``channel``."""
    # The vault closes the channel when it ends, and the porter ends then. A signal must not end it earlier: clients may
    # have to receive the vault's last messages.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _drop_privileges()
    sock = socket.socket(fileno=channel)
    sock.setblocking(False)
    with suppress(KeyboardInterrupt):
        Porter(sock).run()
    # Skip all finalizers: what is still queued is dropped with the process.
    os._exit(0)


def _drop_privileges() -> None:
    # The descriptors in flight of all porters count together for root and may exceed one process' limit.
    privileges.keep({Capability.SYS_RESOURCE})
    with suppress(PrivilegesError):
        # libseccomp is missing, which the guard has reported.
        privileges.deny(_DENIED)


if __name__ == "__main__":
    main(int(sys.argv[1]))
