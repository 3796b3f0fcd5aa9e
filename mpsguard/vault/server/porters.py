"""The vault's side of its porters: one process for each connected user, which owns that user's connections."""

import asyncio
import os
import socket
from typing import Final, NamedTuple

from mpsguard.linux.identity import Credentials, is_root
from mpsguard.linux.processes.helper_process import HelperProcess, module_command, service_environment
from mpsguard.linux.sockets import seqpacket
from mpsguard.vault.server import porter

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
    def __init__(self, process: HelperProcess, channel: socket.socket) -> None:
        self.process = process
        self.channel = channel
        self.connections = 0
        self.idle: asyncio.TimerHandle | None = None


class Admitted(NamedTuple):
    """A connection that was passed to a porter."""

    socket: socket.socket
    """The vault's end: frames (`mpsguard.vault.server.frame`), non-blocking."""
    peer: Credentials
    porter: _Porter


class Porters:
    """Owns the porter processes and their channels. Used on one event loop only."""

    def __init__(self) -> None:
        self._porters: dict[int, _Porter] = {}
        self._ending: list[HelperProcess] = []

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
        uid, found = admitted.peer.user, admitted.porter
        found.connections -= 1
        if not found.connections and self._porters.get(uid) is found:
            found.idle = asyncio.get_running_loop().call_later(_IDLE, self._end, uid)

    async def close(self) -> None:
        """End all porters, and with them their connections."""
        for uid in list(self._porters):
            self._end(uid)
        loop = asyncio.get_running_loop()
        due = loop.time() + _END_DEADLINE
        while self._ending and loop.time() < due:  # noqa: ASYNC110 - they are few, and end at once
            await asyncio.sleep(0.01)
        for process in self._ending:
            loop.remove_reader(process.pidfd)
            process.abandon()
        self._ending.clear()

    def _give(self, client: socket.socket, theirs: socket.socket, peer: Credentials) -> _Porter:
        fds = (client.fileno(), theirs.fileno())
        for _ in range(2):
            found = self._porters.get(peer.user) or self._start(peer.user)
            try:
                seqpacket.send(found.channel, porter.admission(peer), fds=fds)
            except BlockingIOError:
                raise NoPorterError(f"the porter of user {peer.user} is busy") from None
            except OSError:
                # The porter has ended, and its connections with it.
                self._end(peer.user)
            else:
                return found
        raise NoPorterError(f"the porter of user {peer.user} does not stay")

    def _start(self, uid: int) -> _Porter:
        if len(self._porters) >= PORTERS_MOST:
            idle = next((other for other, each in self._porters.items() if not each.connections), None)
            if idle is not None:
                self._end(idle)
            elif not is_root(uid):
                raise NoPorterError(f"{len(self._porters)} users are connected")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with theirs:
            try:
                process = HelperProcess(
                    module_command("mpsguard.vault.server.porter", str(theirs.fileno())),
                    service_environment(os.environ),
                    fds=(theirs.fileno(),),
                )
            except OSError as error:
                ours.close()
                raise NoPorterError(f"no process for user {uid}: {error.strerror}") from None
        found = self._porters[uid] = _Porter(process, ours)
        return found

    def _end(self, uid: int) -> None:
        found = self._porters.pop(uid)
        if found.idle is not None:
            found.idle.cancel()
        # The porter ends when its channel is closed.
        found.channel.close()
        self._ending.append(found.process)
        asyncio.get_running_loop().add_reader(found.process.pidfd, self._reap, found.process)

    def _reap(self, process: HelperProcess) -> None:
        """Reap a porter that has ended, at once: until then its pidfd is open."""
        asyncio.get_running_loop().remove_reader(process.pidfd)
        process.wait()
        self._ending.remove(process)
