"""The pool's socket: takes connections of its own user alone."""

import asyncio
import errno
import os
import socket
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from mpsguard.linux.descriptors.fd_closer import ForeignFdCloser
from mpsguard.linux.files.file_lock import FileLock, LockHeldError
from mpsguard.linux.sockets import accepting, seqpacket
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.pool.address import make_directory
from mpsguard.pool.conversation import PoolConversation
from mpsguard.pool.errors import PoolError
from mpsguard.pool.store_threads import StoreThreads
from mpsguard.pool.tier_owner import TierOwner
from mpsguard.pool.worker_pool import WorkerPool
from mpsguard.tasks import TaskSet, end_tasks

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
        self._listener: socket.socket | None = None
        self._tasks = TaskSet()
        self._closer = ForeignFdCloser()
        self._numbers = count()

    def open(self, path: Path) -> None:
        """Listen at ``path``.

        Raises:
            PoolError: another pool does, the directory is not safe, or the operating system refuses.
        """
        make_directory(path.parent)
        try:
            self._lock = FileLock.take(path.with_name(path.name + ".lock"), 0o600)
            self._listener = _listen(path)
        except LockHeldError as error:
            raise PoolError(f"{path}: process {error.pid} has a pool there") from None
        except OSError as error:
            raise PoolError(f"{path}: {error.strerror or error}") from None
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    async def close(self) -> None:
        """End all connections, and let go of the socket."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        await end_tasks(self._tasks)
        self._looks.close(0.0)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _accept(self) -> None:
        if self._listener is None:
            return
        for _ in range(_ACCEPT_BATCH):
            try:
                connection = accepting.accept(self._listener)
            except BlockingIOError:
                return
            except OSError:
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener.fileno())
                loop.call_later(_PAUSE, self._accept_again)
                return
            # The directory's mode keeps other users away; this holds as well if somewhat wider modes are set later.
            if seqpacket.peer(connection).uid != os.geteuid() or len(self._tasks) >= _MOST:
                accepting.close(connection)
                continue
            self._tasks.spawn(self._converse(connection))

    def _accept_again(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

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
        if self._listener is not None:
            await closed


def _listen(path: Path) -> socket.socket:
    """Bind and listen; the caller has the lock. Raise OSError."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "something is there that is no socket")
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        os.fchmod(sock.fileno(), 0o600)
        # Connections inherit it: the pool takes descriptors when it has asked for them.
        seqpacket.let_descriptors_come(sock, allowed=False)
        sock.bind(str(path))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
