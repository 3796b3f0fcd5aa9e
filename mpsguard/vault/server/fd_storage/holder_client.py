"""The guard's side of the holder process: finds a running holder or starts one, and passes bundles to it."""

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from mpsguard.linux.descriptors.fd_bundle import FdBundle
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.processes.child import end_of
from mpsguard.linux.processes.helper_process import HelperProcess, module_command, service_environment
from mpsguard.linux.sockets.async_request_channel import AsyncRequestChannel
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import Packet
from mpsguard.vault.server.fd_storage.holder_process import LIMIT
from mpsguard.vault.wire.errors import UnavailableError

_DEADLINE: Final = 10.0
"""Seconds for the holder to start, or to answer."""


class HolderClient:
    """An `FdStorage`; owns the connection to the holder. Only this user may access the holder's directory.

    A holder is started when the first bundle is stored.
    """

    def __init__(self, path: Path, channel: AsyncRequestChannel | None, deadline: float) -> None:
        self._path = path
        self._channel = channel
        self._deadline = deadline
        self._turn = asyncio.Lock()
        self._there = asyncio.Event()
        self._gone = asyncio.Event()
        if channel is not None:
            self._there.set()

    @classmethod
    async def open(cls, directory: Path, deadline: float = _DEADLINE) -> Self:
        """Connect to the holder of ``directory`` if there is one; a missing directory is created with mode 0700.

        Args:
            directory: the holder's directory.
            deadline: seconds for each answer of the holder.

        Raises:
            UnavailableError: the connection failed, or the directory or the listening process belongs to another user.
        """
        path = directory / "holder.sock"
        return cls(path, await _connect(path, deadline), deadline)

    async def list(self) -> dict[str, socket.socket]:
        """Return copies of the stored bundles by name, owned by the caller; raise UnavailableError."""
        found: dict[str, socket.socket] = {}
        if self._channel is None:
            return found
        async with self._turn:
            channel = await self._connected()
            try:
                while (packet := await self._exchange(channel, b"next" if found else b"list")).data != b"end":
                    word, _, name = packet.data.decode(errors="replace").partition(" ")
                    if word != "parcel" or len(packet.fds) != 1:
                        close_all(packet.fds)
                        raise UnavailableError(f"the holder said {packet.data[:80]!r}")
                    found[name] = socket.socket(fileno=packet.fds[0])
            except BaseException:
                # It is in the middle of its list.
                channel.close()
                for sock in found.values():
                    sock.close()
                raise
        return found

    async def keep(self, name: str, bundle: FdBundle) -> None:
        """See `FdStorage.keep`."""
        with bundle.kept, bundle.receipt:
            answer = await self._ask(f"keep {name}".encode(), (bundle.kept.fileno(),))
        if answer != b"kept":
            raise UnavailableError(f"the holder did not keep {name}: {answer[:200].decode(errors='replace')}")

    async def forget(self, name: str) -> None:
        """See `FdStorage.forget`."""
        if self._channel is None:
            return
        with suppress(UnavailableError):
            await self._ask(f"forget {name}".encode())

    async def leave(self) -> None:
        """Make the holder end and drop its content, because another storage has it now.

        It has ended when this returns, and its socket is removed, unless it does not answer.
        """
        if self._channel is None:
            return
        with suppress(UnavailableError, TimeoutError):
            await self._ask(b"leave")
            async with asyncio.timeout(self._deadline):
                await self._end(self._channel.stream)

    async def lost(self) -> None:
        """See `FdStorage.lost`; a new holder has been started when this returns."""
        await self._there.wait()
        async with self._turn:
            channel = await self._connected()
        await self._end(channel.stream)
        async with self._turn:
            await self._connected()
            self._gone.clear()

    async def close(self) -> None:
        """See `FdStorage.close`."""
        if self._channel is not None:
            self._channel.close()

    async def _end(self, stream: PacketStream) -> None:
        """Return once the holder has ended, or does not answer."""
        loop = asyncio.get_running_loop()
        try:
            # This fails after a timeout, or if no new holder could be started.
            pid = stream.peer().pid
            pidfd = stream.peer_pidfd()
            pidfd = os.pidfd_open(pid) if pidfd is None else pidfd
        except OSError:
            return
        loop.add_reader(pidfd, self._gone.set)
        try:
            await self._gone.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    async def _ask(self, word: bytes, fds: tuple[int, ...] = ()) -> bytes:
        async with self._turn:
            try:
                packet = await (await self._connected()).ask(word, fds)
            except ConnectionError:
                # A holder that holds nothing ends between two connections.
                packet = await self._exchange(await self._connected(), word, fds)
            except OSError as error:
                raise self._silent(error) from None
            close_all(packet.fds)
            return packet.data

    async def _connected(self) -> AsyncRequestChannel:
        """Return an open channel, to the holder that there is or to a new one; raise UnavailableError."""
        if self._channel is None or not self._channel.open:
            if self._channel is not None:
                self._channel.close()
            found = await _connect(self._path, self._deadline)
            if found is None:
                found = await _start(self._path, self._deadline)
                if self._there.is_set():
                    # The former one has ended, with all that it held.
                    self._gone.set()
            self._channel = found
            self._there.set()
        return self._channel

    async def _exchange(self, channel: AsyncRequestChannel, word: bytes, fds: tuple[int, ...] = ()) -> Packet:
        """Send a request and return the holder's answer.

        A cancelled one loses nothing: the holder lives, and the next request connects to it again.
        """
        try:
            return await channel.ask(word, fds)
        except OSError as error:
            raise self._silent(error) from None

    def _silent(self, error: OSError) -> UnavailableError:
        self._gone.set()
        return UnavailableError(f"the holder is gone: {error}")


async def _connect(path: Path, deadline: float) -> AsyncRequestChannel | None:
    """Return a channel to the holder at ``path``, or None if there is no holder.

    Raises:
        UnavailableError: the connection failed, or another user's process listens there.
    """
    _check_directory(path.parent)
    try:
        async with asyncio.timeout(_DEADLINE):
            stream = await PacketStream.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except (OSError, TimeoutError) as error:
        raise UnavailableError(f"{path}: {error}") from None
    if stream.peer().uid != os.geteuid():
        stream.close()
        raise UnavailableError(f"{path}: a process of uid {stream.peer().uid} listens there")
    return AsyncRequestChannel(stream, LIMIT, deadline)


def _check_directory(directory: Path) -> None:
    try:
        with Directory.make(directory, 0o700) as made:
            status = os.fstat(made.fd)
    except OSError as error:
        raise UnavailableError(f"{error.filename or directory}: {error.strerror}") from None
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UnavailableError(f"{directory}: must belong to uid {os.geteuid()} alone, with mode 0700")


async def _start(path: Path, deadline: float) -> AsyncRequestChannel:
    try:
        child = HelperProcess(
            module_command("mpsguard.vault.server.fd_storage.holder_process", str(path)),
            service_environment(os.environ),
        )
    except OSError as error:
        raise UnavailableError(f"the holder cannot be started: {error.strerror}") from None
    try:
        status = await end_of(child, _DEADLINE)
    except TimeoutError:
        raise UnavailableError(f"the holder was not ready within {_DEADLINE:g} s") from None
    channel = await _connect(path, deadline) if status == 0 else None
    if channel is None:
        raise UnavailableError(f"the holder did not start: exit status {status}")
    return channel
