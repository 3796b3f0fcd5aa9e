"""The vault's socket: accepts clients, limits their number, and isolates their failures from each other."""

import asyncio
import os
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.linux.descriptors.fd_closer import of_strangers
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.tasks import end_tasks, report_defect
from mpsguard.vault import wire
from mpsguard.vault.conversation import Conversation
from mpsguard.vault.errors import Code
from mpsguard.vault.porters import NoPorterError, Porters
from mpsguard.vault.quota import room_of
from mpsguard.vault.turns import Turns
from mpsguard.vault.vault import Vault

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
        self._turns = Turns()
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Connections with their users, the oldest first."""
        self._held: Counter[int] = Counter()
        """Number of connections of each user."""

    def open(self, path: Path, given: socket.socket | None = None) -> None:
        """Listen at ``path`` for every user, or adopt the listening socket ``given``; raise OSError.

        The caller must hold the lock that excludes other guards.
        """
        self._listener = given or _listen(path)
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
        await end_tasks(self._tasks)
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
        peer = seqpacket.peer(sock)
        quota, tally = self._vault.quota, self._vault.tally
        tally.connections_made += 1
        if peer.pid <= 0 or self._held[peer.uid] >= quota.connections_per_uid or not self._has_place(peer.uid):
            held = self._held[peer.uid]
            self._refuse(sock, f"uid {peer.uid} has {held} connections, all users {len(self._tasks)}")
            return
        try:
            admitted = self._porters.admit(sock, peer)
        except (NoPorterError, OSError) as error:
            self._refuse(sock, str(error))
            return
        pidfd = seqpacket.peer_pidfd(sock)
        # The porter has a copy, so this does not end the connection.
        sock.close()
        self._held[peer.uid] += 1
        tally.connections += 1
        conversation = Conversation(
            admitted.socket, peer, pidfd, self._vault, self._turns, stats=self._stats, simulated=self._simulated
        )
        task = asyncio.create_task(self._converse(conversation, admitted.socket, peer.uid))
        self._tasks[task] = peer.uid

        def over(task: asyncio.Task[None]) -> None:
            conversation.close()
            admitted.socket.close()
            self._porters.release(admitted)
            del self._tasks[task]
            tally.connections -= 1
            self._held[peer.uid] -= 1
            if not self._held[peer.uid]:
                del self._held[peer.uid]
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
        if len(self._tasks) < room_of(uid, self._vault.quota.connections):
            return True
        heaviest, count = max(self._held.items(), key=lambda item: item[1])
        if count <= self._held[uid] + 1:
            return False
        newest = next((t for t, of in reversed(self._tasks.items()) if of == heaviest and not t.cancelling()), None)
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


def _listen(path: Path) -> socket.socket:
    with suppress(FileNotFoundError):
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # Set the mode before the name exists, so that no client is rejected in between.
        os.fchmod(sock.fileno(), 0o666)
        before = os.umask(0)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
