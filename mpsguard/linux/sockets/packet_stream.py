"""A SEQPACKET connection for asyncio: `receive` and `send` that wait, on one owned socket."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self

from mpsguard.linux.closing import Closing
from mpsguard.linux.descriptors.fd_closer import ForeignFdCloser
from mpsguard.linux.identity import Credentials
from mpsguard.linux.processes import peer_user
from mpsguard.linux.sockets import accepting, seqpacket
from mpsguard.linux.sockets.seqpacket import Packet
from mpsguard.linux.sockets.user_turns import UserTurns

_BACKLOG_RETRY: Final = 0.002
"""Seconds between two tries while a listener's backlog is full."""
_LOOK_AGAIN: Final = 0.1
"""Seconds between two looks at a peer that has sent more than was read."""


class PacketStream(Closing):
    """Owns a non-blocking SEQPACKET socket. One task may receive while another sends."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @classmethod
    async def connect(cls, path: str) -> Self:
        """Connect to ``path``; waits as long as the backlog of the listener is full."""
        sock = seqpacket.new_socket()
        try:
            while True:
                try:
                    sock.connect(path)
                    break
                except BlockingIOError:
                    # A full backlog is EAGAIN for AF_UNIX, and nothing can be polled for it (connect(2)); asyncio's
                    # own sock_connect takes it for a connection in progress.
                    await asyncio.sleep(_BACKLOG_RETRY)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    def close(self) -> None:
        """Give the socket back; safe to call twice."""
        self._socket.close()

    def detach(self) -> int:
        """End the connection, and return its descriptor, owned by the caller; then this object is closed."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        return self._socket.detach()

    def let_descriptors_come(self, *, allowed: bool) -> None:
        """See `seqpacket.let_descriptors_come`."""
        seqpacket.let_descriptors_come(self._socket, allowed=allowed)

    def takes_descriptors(self) -> bool:
        """See `accepting.takes_descriptors`."""
        return accepting.takes_descriptors(self._socket.fileno())

    def fileno(self) -> int:
        """Return the socket's descriptor, for readiness; -1 once it is closed."""
        return self._socket.fileno()

    def peer(self) -> Credentials:
        """Return the process that made the connection, or listens at the other end."""
        return seqpacket.peer(self._socket)

    def peer_is_admin(self) -> bool:
        """See `peer_user.is_admin`."""
        return peer_user.is_admin(self._socket)

    def peer_now(self) -> Credentials:
        """Return the same with its user as it is now."""
        return peer_user.peer_of(self._socket)

    def peer_pidfd(self) -> int | None:
        """A pidfd of the peer, owned by the caller, or None where the kernel gives none."""
        return seqpacket.peer_pidfd(self._socket)

    def has_left(self) -> bool:
        """Return whether the peer has closed its end; what it sent before may still be received."""
        return accepting.has_left(self._socket.fileno())

    def end_sending(self) -> None:
        """Tell the peer that no more will come, and go on listening."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            # The peer is gone already: it needs no telling.
            return

    async def readable(self, or_else: asyncio.Future[None] | None = None) -> None:
        """Wait until a packet or the end of the stream is there, and take nothing; or until ``or_else`` is done.

        ``or_else`` is done afterwards in either case.
        """
        loop = asyncio.get_running_loop()
        await self._ready(loop.add_reader, loop.remove_reader, or_else)

    async def writable(self) -> None:
        """Wait until the peer's buffer has room."""
        loop = asyncio.get_running_loop()
        await self._ready(loop.add_writer, loop.remove_writer)

    @contextmanager
    def noticing_the_end(self, then: Callable[[], object]) -> Iterator[None]:
        """Call ``then`` once if the peer closes its end during a block, in which nothing may be received."""
        loop, fd = asyncio.get_running_loop(), self._socket.fileno()
        later: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal later
            loop.remove_reader(fd)
            if accepting.has_left(self._socket.fileno()):
                then()
            else:
                # What it sent ahead is not to be read yet, and keeps the socket ready.
                later = loop.call_later(_LOOK_AGAIN, loop.add_reader, fd, look)

        loop.add_reader(fd, look)
        try:
            yield
        finally:
            loop.remove_reader(fd)
            if later is not None:
                later.cancel()

    async def receive(self, limit: int, *, max_fds: int = seqpacket.MAX_FDS) -> Packet:
        """The next packet; see `seqpacket.receive`."""
        while True:
            try:
                return self.receive_now(limit, max_fds=max_fds)
            except BlockingIOError:
                await self.readable()

    def receive_now(self, limit: int, *, max_fds: int = seqpacket.MAX_FDS) -> Packet:
        """As `receive`; BlockingIOError if no packet is there. On any thread."""
        return seqpacket.receive(self._socket, limit, max_fds=max_fds)

    async def send(self, data: bytes, *, sender: Credentials | None = None, fds: tuple[int, ...] = ()) -> None:
        """Send one packet, waiting while the peer's buffer is full."""
        while True:
            try:
                self.send_now(data, sender=sender, fds=fds)
            except BlockingIOError:
                await self.writable()
            else:
                return

    def send_now(self, data: bytes, *, sender: Credentials | None = None, fds: tuple[int, ...] = ()) -> None:
        """As `send`; BlockingIOError if the peer's buffer is full. On any thread."""
        seqpacket.send(self._socket, data, sender=sender, fds=fds)

    async def _ready(
        self,
        add: Callable[[int, Callable[[], None]], object],
        remove: Callable[[int], object],
        or_else: asyncio.Future[None] | None = None,
    ) -> None:
        fd = self._socket.fileno()
        ready = asyncio.get_running_loop().create_future() if or_else is None else or_else
        add(fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            remove(fd)


class StrangerStream(PacketStream):
    """A connection of a peer that is not trusted: nothing that it has sent along is closed on the event loop.

    A descriptor may be of a socket that lingers, and close(2) of the last one then takes as long as its owner likes.
    That holds for received ones, and for those still queued in our own socket when that is closed.

    Nor is it heeded more often in a pass of the event loop than its user's share of that allows (`UserTurns`).
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: Credentials,
        turns: UserTurns,
        closer: ForeignFdCloser,
        closed: Callable[[], None],
    ) -> None:
        """Own the connection ``sock`` of ``peer``, with its user (`peer_user`).

        ``closed`` is called in the event loop once socket and descriptors are closed, however long that takes.
        """
        super().__init__(sock)
        self._peer = peer
        self._turns = turns
        turns.enter(peer.user)
        self._closer = closer
        self._closed = closed
        self._sealed = not accepting.takes_descriptors(sock.fileno())
        self._received: list[int] = []

    def peer(self) -> Credentials:
        """Return the process that made the connection, with its user as it was then."""
        return self._peer

    async def readable(self, or_else: asyncio.Future[None] | None = None) -> None:
        """See `PacketStream.readable`."""
        await self._turns.readable(self._peer.user, self._socket.fileno(), or_else)

    async def writable(self) -> None:
        """See `PacketStream.writable`."""
        await self._turns.writable(self._peer.user, self._socket.fileno())

    def receive_now(self, limit: int, *, max_fds: int = seqpacket.MAX_FDS) -> Packet:
        """See `PacketStream.receive_now`; a packet's descriptors stay the stream's and are closed with it.

        All that the kernel passes are taken: those it has no room for it would close itself, in this very call.
        """
        packet = super().receive_now(limit, max_fds=max_fds if self._sealed else seqpacket.KERNEL_MAX_FDS)
        self._received += packet.fds
        return packet

    def close(self) -> None:
        """Give socket and descriptors back, soon; safe to call twice."""
        if self._socket.fileno() < 0:
            return
        self._turns.leave(self._peer.user)
        if self._sealed:
            accepting.close(self._socket.detach())
            self._closed()
            return
        loop = asyncio.get_running_loop()

        def told() -> None:
            # A loop that has ended need not be told.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._closed)

        self._closer.close(self._peer.user, (*self._received, self._socket.detach()), told)
        self._received.clear()
