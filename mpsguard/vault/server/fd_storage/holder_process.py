"""The holder: a process that only holds the vault's descriptors, without a service manager; it outlives the guard.

    python -m mpsguard.vault.server.fd_storage.holder_process SOCKET

It moves to its own session as soon as it listens, and ends when no guard is connected and it holds nothing. It serves
one guard at a time, run by its own user or root. Its protocol, one word in each packet, must stay as it is: the
connecting guard may be of a later version.

    keep NAME    with one descriptor, a bundle  ->  kept | refused WHY
    forget NAME                                 ->  forgotten
    list                                        ->  parcel NAME, with one descriptor, until the asker says `next`; end
    leave                                       ->  left, and it ends, even if it still holds something

It unpacks the bundles, because descriptors in a socket's queue count against the number that the user's other programs
may pass to each other.
"""

import os
import resource
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.identity import ROOT
from mpsguard.linux.processes import peer_user
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.socket_copy import socket_copy

LIMIT: Final = 512
"""Maximum size in bytes of a word with its name."""

_OUR_OWN: Final = 64
"""Descriptors reserved for serving a guard."""
_AGAIN: Final = 0.1
"""Seconds before accept(2) is retried after a failure: the machine may be short of memory or descriptors."""
_REPLY_DEADLINE: Final = 30.0
"""Seconds for a guard to send the next word of a list; after that it is disconnected."""


class HolderProcess:
    """The held descriptors by name, with the labels of their bundles."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[bytes, tuple[int, ...]]] = {}
        self._leave = False

    def run(self, listener: socket.socket) -> None:
        """Serve one guard after the other until nothing is held."""
        while True:
            with _accepted(listener) as connection, suppress(OSError):
                connection.settimeout(None)
                if peer_user.peer_of(connection).user in (ROOT, os.geteuid()):
                    self._serve(connection)
            if self._leave or not self._held:
                return

    def _serve(self, connection: socket.socket) -> None:
        while not self._leave:
            packet = seqpacket.receive(connection, LIMIT)
            if packet.end:
                return
            word, _, name = packet.data.decode(errors="replace").partition(" ")
            try:
                answer = self._execute(connection, word, name, packet.fds)
            finally:
                for fd in packet.fds:
                    os.close(fd)
            connection.send(answer)

    def _execute(self, connection: socket.socket, word: str, name: str, fds: tuple[int, ...]) -> bytes:
        if word == "keep" and len(fds) == 1:
            return self._keep(name, fds[0])
        if word == "forget":
            self._forget(name)
            return b"forgotten"
        if word == "list":
            self._list(connection)
            return b"end"
        if word == "leave":
            self._leave = True
            return b"left"
        return b"refused unknown word"

    def _keep(self, name: str, fd: int) -> bytes:
        try:
            with socket_copy(fd) as bundle:
                held = fd_bundle.unpack(bundle)
        except OSError as error:
            return f"refused {error.strerror}".encode()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OUR_OWN
        others = sum(len(fds) for other, (_, fds) in self._held.items() if other != name)
        if others + len(held[1]) > most:
            for each in held[1]:
                os.close(each)
            return f"refused no more than {most} descriptors are held".encode()
        self._forget(name)
        self._held[name] = held
        return b"kept"

    def _forget(self, name: str) -> None:
        _, fds = self._held.pop(name, (b"", ()))
        for fd in fds:
            os.close(fd)

    def _list(self, connection: socket.socket) -> None:
        connection.settimeout(_REPLY_DEADLINE)
        for name, (label, fds) in list(self._held.items()):
            bundle = fd_bundle.pack(label, fds)
            with bundle.kept, bundle.receipt:
                seqpacket.send(connection, f"parcel {name}".encode(), fds=(bundle.kept.fileno(),))
                if seqpacket.receive(connection, LIMIT).data != b"next":
                    raise OSError("the guard does not listen")
        connection.settimeout(None)


def _accepted(listener: socket.socket) -> socket.socket:
    """Return the next connection, retrying for ever: if this process ended, everything it holds would be lost."""
    while True:
        try:
            return listener.accept()[0]
        except OSError:
            time.sleep(_AGAIN)


def main(path: Path) -> None:
    """Listen, move to the background, and serve."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as listener:
        # The guard that starts it has found none that listens there, and has made the directory.
        with Directory.open(path.parent) as directory:
            directory.bind(listener, path.name, 0o600)
        ready, telling = os.pipe()
        if os.fork():
            os.close(telling)
            # The exit status tells the guard whether the holder listens.
            os._exit(0 if os.read(ready, 1) else 1)
        os.close(ready)
        # After the fork, because the kernel reports the caller of listen(2) as the peer of every connection.
        listener.listen(8)
        os.write(telling, b"!")
        os.close(telling)
        HolderProcess().run(listener)
        with suppress(OSError), Directory.open(path.parent) as directory:
            directory.remove(path.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
