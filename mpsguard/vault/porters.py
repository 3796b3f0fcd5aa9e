"""The vault's side of its porters: one process for each connected user, which owns that user's connections."""

import asyncio
import os
import socket
import subprocess
import sys
from typing import Final, NamedTuple

from mpsguard.linux.processes.child import python_path
from mpsguard.linux.sockets import seqpacket
from mpsguard.model import Credentials
from mpsguard.vault import porter

PORTERS_MOST: Final = 64
"""Maximum number of users with a porter; each takes about 10 MB. A porter without connections makes room for another
user, and root always gets one."""

_IDLE: Final = 3.0
"""Seconds that a porter stays without a connection: starting one takes a tenth of a second."""

_END_DEADLINE: Final = 5.0
"""Seconds for all porters to end. A porter that a foreign file system blocks is abandoned; it holds nothing of the
vault."""


class NoPorterError(Exception):
    """No porter can take the connection now."""


class _Porter:
    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.process = process
        self.channel = channel
        self.connections = 0
        self.idle: asyncio.TimerHandle | None = None


class Admitted(NamedTuple):
    """A connection that was passed to a porter."""

    socket: socket.socket
    """The vault's end: frames (`mpsguard.vault.frame`), non-blocking."""
    peer: Credentials
    porter: _Porter


class Porters:
    """Owns the porter processes and their channels. Used on one event loop only."""

    def __init__(self) -> None:
        self._porters: dict[int, _Porter] = {}
        self._ending: list[subprocess.Popen[bytes]] = []

    def admit(self, client: socket.socket, peer: Credentials) -> "Admitted":
        """Pass a client's connection to its user's porter.

        Args:
            client: the connection; the porter gets a copy, and the caller must close its own.
            peer: the peer of that connection.

        Returns:
            The vault's end, owned by the caller. The porter closes the other end once it has released the client; the
            caller must then call `release`.

        Raises:
            NoPorterError: nothing was done.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with theirs:
            try:
                found = self._give(client, theirs, peer)
            except BaseException:
                ours.close()
                raise
        found.connections += 1
        if found.idle is not None:
            found.idle.cancel()
            found.idle = None
        return Admitted(ours, peer, found)

    def release(self, admitted: "Admitted") -> None:
        """Record that a connection has ended."""
        uid, found = admitted.peer.uid, admitted.porter
        found.connections -= 1
        if not found.connections and self._porters.get(uid) is found:
            found.idle = asyncio.get_running_loop().call_later(_IDLE, self._end, uid)

    async def close(self) -> None:
        """End all porters, and with them their connections."""
        for uid in list(self._porters):
            self._end(uid)
        loop = asyncio.get_running_loop()
        due = loop.time() + _END_DEADLINE
        while self._still_ending() and loop.time() < due:  # noqa: ASYNC110 - they are few, and end at once
            await asyncio.sleep(0.01)
        for process in self._ending:
            process.kill()
            # A blocked process cannot be reaped yet. Mark it as ended; init reaps it later.
            process.returncode = -9
        self._ending.clear()

    def _give(self, client: socket.socket, theirs: socket.socket, peer: Credentials) -> _Porter:
        fds = (client.fileno(), theirs.fileno())
        for _ in range(2):
            found = self._porters.get(peer.uid) or self._start(peer.uid)
            try:
                seqpacket.send(found.channel, porter.admission(peer), fds=fds)
            except BlockingIOError:
                raise NoPorterError(f"the porter of uid {peer.uid} is busy") from None
            except OSError:
                # The porter has ended, and its connections with it.
                self._end(peer.uid)
            else:
                return found
        raise NoPorterError(f"the porter of uid {peer.uid} does not stay")

    def _start(self, uid: int) -> _Porter:
        self._still_ending()
        if len(self._porters) >= PORTERS_MOST:
            idle = next((other for other, each in self._porters.items() if not each.connections), None)
            if idle is not None:
                self._end(idle)
            elif uid:
                raise NoPorterError(f"{len(self._porters)} users are connected")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "mpsguard.vault.porter", str(theirs.fileno())],
                    env=_environment(),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise NoPorterError(f"no process for uid {uid}: {error.strerror}") from None
        found = self._porters[uid] = _Porter(process, ours)
        return found

    def _end(self, uid: int) -> None:
        found = self._porters.pop(uid)
        if found.idle is not None:
            found.idle.cancel()
        # The porter ends when its channel is closed.
        found.channel.close()
        self._ending.append(found.process)

    def _still_ending(self) -> bool:
        self._ending = [process for process in self._ending if process.poll() is None]
        return bool(self._ending)


def _environment() -> dict[str, str]:
    """Return an environment with the path of this package, and without the service's own variables."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "PYTHONPATH": python_path(os.environ)}
