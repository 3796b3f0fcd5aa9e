"""The vault's socket: accepts clients, limits their number, and isolates their failures from each other."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.linux.descriptors.fd_closer import of_strangers
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.identity import ROOT
from mpsguard.linux.processes import peer_user
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.tasks import end_tasks, report_defect
from mpsguard.linux.user_share import UserShare
from mpsguard.vault.server.conversation import Conversation
from mpsguard.vault.server.porters import NoPorterError, Porters
from mpsguard.vault.server.quota import RESERVE
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire import wire
from mpsguard.vault.wire.errors import Code

_BACKLOG: Final = 1024
_ACCEPT_BATCH: Final = 64
_OUT_OF_DESCRIPTORS_PAUSE: Final = 0.2
"""Seconds without accepting after the process has run out of descriptors."""


class VaultServer:
    """Owns the listening socket and the connections."""

    def __init__(self, vault: Vault, stats: StatReader, *, simulated: bool = False) -> None:
        """Create a server that does not listen yet.

        Args:
            vault: the vault to serve.
            stats: looks up processes.
            simulated: whether host memory may stand for GPU memory.
        """
        self._vault = vault
        self._stats = stats
        self._simulated = simulated
        self._guarded = False
        """Whether new connections refuse descriptors until they are expected."""
        self._listener: socket.socket | None = None
        self._porters = Porters()
        self._turns = vault.turns
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Connections with their users, the oldest first."""
        quota = vault.quota
        self._places: UserShare[int] = UserShare(
            quota.connections, privileged=(ROOT,), reserved=quota.connections // RESERVE
        )
        """Of connections; one user's share is `Quota.connections_per_uid`, root's too."""

    def open(self, path: Path, given: socket.socket | None = None) -> None:
        """Listen at ``path`` for every user, or adopt the listening socket ``given``; raise OSError.

        The caller must hold the lock that excludes other guards.
        """
        self.serve(given or listen(path))

    def serve(self, listener: socket.socket) -> None:
        """Accept clients at a listening socket, which this object owns, in the place of an earlier one."""
        if self._listener is not None:
            self._accept()
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
        self._listener = listener
        self._listener.setblocking(False)
        # Connections inherit this option; since Linux 6.16 it applies as soon as they are created.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # Inherited too: a client cannot queue descriptors here. Porters allow them when they are expected.
        self._guarded = seqpacket.let_descriptors_come(self._listener, allowed=False)
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    async def close(self) -> None:
        """Stop listening and end all connections; leases remain valid.

        The socket's name stays, so that no other process can bind it.
        """
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        try:
            await end_tasks(self._tasks)
        finally:
            await self._porters.close()

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        listener = self._listener
        if listener is None:
            return
        for _ in range(_ACCEPT_BATCH):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # No descriptor left: further clients wait in the backlog.
                loop.remove_reader(listener.fileno())
                loop.call_later(_OUT_OF_DESCRIPTORS_PAUSE, self._accept_again)
                return
            self._admit(sock)

    def _accept_again(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        peer = peer_user.peer_of(sock)
        quota, tally = self._vault.quota, self._vault.tally
        tally.connections_made += 1
        held = self._places.held(peer.user)
        if peer.pid <= 0 or held >= quota.connections_per_uid or not self._has_place(peer.user):
            self._refuse(sock, f"user {peer.user} has {held} connections, all users {len(self._tasks)}")
            return
        try:
            admitted = self._porters.admit(sock, peer)
        except (NoPorterError, OSError) as error:
            self._refuse(sock, str(error))
            return
        pidfd = seqpacket.peer_pidfd(sock)
        # The porter has a copy, so this does not end the connection.
        sock.close()
        place = self._places.exceed(peer.user)
        tally.connections += 1
        conversation = Conversation(
            admitted.socket, peer, pidfd, self._vault, self._turns, stats=self._stats, simulated=self._simulated
        )
        task = asyncio.create_task(self._converse(conversation, admitted.socket, peer.user))
        self._tasks[task] = peer.user

        def over(task: asyncio.Task[None]) -> None:
            conversation.close()
            admitted.socket.close()
            self._porters.release(admitted)
            del self._tasks[task]
            tally.connections -= 1
            place.give_back()
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                # A failure with one peer must not affect the guard; it is counted and reported to make it visible.
                tally.refused("failed")
                report_defect("a connection of the vault", error)

        task.add_done_callback(over)

    def _has_place(self, uid: int) -> bool:
        """Return whether there is a place for ``uid``, if necessary by ending the heaviest user's newest connection.

        The lease of an ended connection remains valid.
        """
        if self._places.has_room(uid):
            return True
        heavier = self._places.heavier(uid)
        newest = next((t for t, of in reversed(self._tasks.items()) if of == heavier and not t.cancelling()), None)
        if newest is not None:
            newest.cancel()
        return newest is not None

    async def _converse(self, conversation: Conversation, sock: socket.socket, uid: int) -> None:
        """Serve a connection; it occupies its place until its porter has released it too."""
        try:
            await self._turns.metered(uid, conversation.run())
        finally:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        await self._drain(PacketStream(sock))

    async def _drain(self, stream: PacketStream) -> None:
        """Return when the porter has released the client; discard what it had read by then."""
        with suppress(OSError):
            while not (packet := await stream.receive(wire.MAX_PACKET, max_fds=seqpacket.KERNEL_MAX_FDS)).end:
                self._vault.store.storage.dispose(packet.fds)

    def _refuse(self, sock: socket.socket, why: str) -> None:
        self._vault.tally.refused(Code.QUOTA)
        with suppress(OSError):
            seqpacket.send(sock, wire.encode(wire.Failure(0, Code.QUOTA, why)))
        if self._guarded:
            sock.close()
        else:
            of_strangers((sock.detach(),))


def listen(path: Path) -> socket.socket:
    """Return a listening socket for every user, on any thread; OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with Directory.open(path.parent) as directory:
            directory.bind(sock, path.name, 0o666)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
