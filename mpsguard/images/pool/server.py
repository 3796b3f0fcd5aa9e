"""The pool's socket: takes connections of its own user alone."""

import asyncio
import os
import socket
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from mpsguard.images.pool.address import make_directory
from mpsguard.images.pool.conversation import PoolConversation
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.store_threads import StoreThreads
from mpsguard.images.pool.tier_owner import TierOwner
from mpsguard.images.pool.worker_pool import WorkerPool
from mpsguard.linux.descriptors.fd_closer import ForeignFdCloser
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.files.file_lock import FileLock, LockHeldError
from mpsguard.linux.sockets import accepting, seqpacket
from mpsguard.linux.sockets.accepting import Acceptor
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.tasks import Owner

_BACKLOG: Final = 128
_MOST: Final = 1024
"""Connections at once; further ones are closed."""
_ACCEPT_BATCH: Final = 64
_PAUSE: Final = 0.2
"""Seconds without accepting after the process has run out of descriptors."""


class PoolServer:
    """Owns the socket, its lock and the connections."""

    def __init__(self, owner: TierOwner, workers: WorkerPool | None) -> None:
        self._owner = owner
        self._workers = workers
        self._looks = StoreThreads("look")
        self._lock: FileLock | None = None
        self._acceptor: Acceptor | None = None
        self._tasks = Owner()
        self._closer = ForeignFdCloser()
        self._numbers = count()

    def open(self, path: Path) -> None:
        """Listen at ``path``.

        Raises:
            PoolError: another pool does, the directory is not safe, or the operating system refuses.
        """
        make_directory(path.parent)
        try:
            with Directory.open(path.parent) as directory:
                self._lock = FileLock.take(directory, f"{path.name}.lock")
                self._acceptor = Acceptor(_listen(directory, path.name))
        except LockHeldError as error:
            raise PoolError(f"{path}: process {error.pid} has a pool there") from None
        except OSError as error:
            raise PoolError(f"{path}: {error.strerror or error}") from None
        asyncio.get_running_loop().add_reader(self._acceptor.listener.fileno(), self._accept)

    async def close(self) -> None:
        """End all connections, and let go of the socket."""
        if self._acceptor is not None:
            asyncio.get_running_loop().remove_reader(self._acceptor.listener.fileno())
            self._acceptor.listener.close()
            self._acceptor = None
        await self._tasks.end()
        self._looks.close(0.0)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _accept(self) -> None:
        if self._acceptor is None:
            return
        for _ in range(_ACCEPT_BATCH):
            try:
                connection, peer = self._acceptor.accept()
            except BlockingIOError:
                return
            except OSError:
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._acceptor.listener.fileno())
                loop.call_later(_PAUSE, self._accept_again)
                return
            # The directory's mode keeps other users away; this holds as well if somewhat wider modes are set later.
            if peer.uid != os.geteuid() or len(self._tasks) >= _MOST:
                accepting.close(connection)
                continue
            self._tasks.spawn(self._converse(accepting.as_socket(connection)))

    def _accept_again(self) -> None:
        if self._acceptor is not None:
            asyncio.get_running_loop().add_reader(self._acceptor.listener.fileno(), self._accept)

    async def _converse(self, connection: socket.socket) -> None:
        conversation = PoolConversation(PacketStream(connection), self._owner, self._looks, self._workers)
        try:
            await conversation.run()
        finally:
            foreign = conversation.give_back()
            if foreign:
                # It has its place until they are closed, and threads of its own for that.
                await self._closed(next(self._numbers), foreign)

    async def _closed(self, number: int, fds: tuple[int, ...]) -> None:
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not closed.done():
                closed.set_result(None)

        def tell() -> None:
            # A loop that has ended need not be told.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(end)

        self._closer.close(number, fds, tell)
        if self._acceptor is not None:
            await closed


def _listen(directory: Directory, name: str) -> socket.socket:
    """Bind and listen; the caller has the lock. Raise OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # Connections inherit it: the pool takes descriptors when it has asked for them.
        seqpacket.let_descriptors_come(sock, allowed=False)
        directory.bind(sock, name, 0o600)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
