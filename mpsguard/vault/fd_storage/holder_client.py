"""The guard's side of the holder process: finds a running holder or starts one, and passes bundles to it."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from mpsguard.linux.descriptors.fd_bundle import FdBundle
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.processes.child import python_path, wait_or_kill
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import Packet
from mpsguard.vault.errors import UnavailableError
from mpsguard.vault.fd_storage.holder_process import LIMIT

_DEADLINE: Final = 10.0
"""Seconds for the holder to start, or to answer."""

_DROPPED: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
"""Variables of the guard's environment that are meant for the guard only."""


class HolderClient:
    """An `FdStorage`; owns the connection to the holder. Only this user may access the holder's directory.

    A holder is started when the first bundle is stored.
    """

    def __init__(self, path: Path, stream: PacketStream | None, deadline: float) -> None:
        self._path = path
        self._stream = stream
        self._deadline = deadline
        self._turn = asyncio.Lock()
        self._there = asyncio.Event()
        self._gone = asyncio.Event()
        if stream is not None:
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
        return cls(path, await _connect(path), deadline)

    async def list(self) -> dict[str, socket.socket]:
        """Return copies of the stored bundles by name, owned by the caller; raise UnavailableError."""
        found: dict[str, socket.socket] = {}
        if self._stream is None:
            return found
        stream = self._stream
        async with self._turn:
            try:
                while (packet := await self._exchange(stream, b"next" if found else b"list")).data != b"end":
                    word, _, name = packet.data.decode(errors="replace").partition(" ")
                    if word != "parcel" or len(packet.fds) != 1:
                        close_all(packet.fds)
                        raise UnavailableError(f"the holder said {packet.data[:80]!r}")
                    found[name] = socket.socket(fileno=packet.fds[0])
            except BaseException:
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
        if self._stream is None:
            return
        with suppress(UnavailableError):
            await self._ask(f"forget {name}".encode())

    async def leave(self) -> None:
        """Make the holder end and drop its content, because another storage has it now."""
        if self._stream is None:
            return
        with suppress(UnavailableError):
            await self._ask(b"leave")

    async def lost(self) -> None:
        """See `FdStorage.lost`; a new holder has been started when this returns."""
        await self._there.wait()
        assert self._stream is not None
        await self._end(self._stream)
        async with self._turn:
            self._stream.close()
            self._stream = await _connect(self._path) or await _start(self._path)
            self._gone.clear()

    async def close(self) -> None:
        """See `FdStorage.close`."""
        if self._stream is not None:
            self._stream.close()

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
            if self._stream is None:
                self._stream = await _connect(self._path) or await _start(self._path)
                self._there.set()
            packet = await self._exchange(self._stream, word, fds)
            close_all(packet.fds)
            return packet.data

    async def _exchange(self, stream: PacketStream, word: bytes, fds: tuple[int, ...] = ()) -> Packet:
        """Send a request and return the holder's answer; after an UnavailableError the connection is unusable."""
        try:
            async with asyncio.timeout(self._deadline):
                await stream.send(word, fds=fds)
                packet = await stream.receive(LIMIT)
        except OSError as error:
            # TimeoutError is an OSError. A late answer would be mistaken for the answer to the next request.
            self._gone.set()
            stream.close()
            raise UnavailableError(f"the holder is gone: {error}") from None
        if packet.end:
            self._gone.set()
            raise UnavailableError("the holder has ended")
        return packet


async def _connect(path: Path) -> PacketStream | None:
    """Return a connection to the holder at ``path``, or None if there is no holder.

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
    return stream


def _check_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise UnavailableError(f"{directory}: {error.strerror}") from None
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UnavailableError(f"{directory}: must belong to uid {os.geteuid()} alone, with mode 0700")


async def _start(path: Path) -> PacketStream:
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "mpsguard.vault.fd_storage.holder_process",
            str(path),
            env=_environment(os.environ),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(f"the holder cannot be started: {error.strerror}") from None
    try:
        status = await wait_or_kill(child, _DEADLINE)
    except TimeoutError:
        raise UnavailableError(f"the holder was not ready within {_DEADLINE:g} s") from None
    stream = await _connect(path) if status == 0 else None
    if stream is None:
        raise UnavailableError(f"the holder did not start: exit status {status}")
    return stream


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in inherited.items() if name not in _DROPPED}
    return {**environment, "PYTHONPATH": python_path(environment)}
