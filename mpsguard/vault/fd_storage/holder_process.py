"""A process that does nothing but hold the vault's descriptors where no service manager does; it outlives the guard.

    python -m mpsguard.vault.fd_storage.holder_process SOCKET

It leaves for a session of its own as soon as it listens, and ends when nobody is connected and it holds nothing. It
serves one guard at a time, of its own user or root. The words it speaks, one in a packet, are to stay as they are: the
guard that it meets may be of a later version.

    keep NAME    with one descriptor, a parcel  ->  kept | refused WHY
    forget NAME                                 ->  forgotten
    list                                        ->  parcel NAME, with one descriptor, until the asker says `next`; end
    leave                                       ->  left, and it ends, whatever it holds

It unpacks the parcels: as long as descriptors lie in a socket's queue they count against what the user's other programs
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

from mpsguard.linux import fd_bundle, seqpacket
from mpsguard.linux.socket_copy import socket_copy

LIMIT: Final = 512
"""Bytes of a word with its name."""

_OUR_OWN: Final = 64
"""Descriptors that are never held, but left for serving a guard."""
_AGAIN: Final = 0.1
"""Seconds until a guard that could not be let in is let in: the machine may be short of memory or descriptors."""
_REPLY_DEADLINE: Final = 30.0
"""Seconds that a guard may take over the next word of a list; one that stops there is let go."""


class HolderProcess:
    """What is held: descriptors by name, with the label of their parcel."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[bytes, tuple[int, ...]]] = {}
        self._leave = False

    def run(self, listener: socket.socket) -> None:
        """Serve one guard after the other, until there is nothing to hold."""
        while True:
            with _accepted(listener) as connection, suppress(OSError):
                connection.settimeout(None)
                if seqpacket.peer(connection).uid in (0, os.geteuid()):
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
                answer = self._obey(connection, word, name, packet.fds)
            finally:
                for fd in packet.fds:
                    os.close(fd)
            connection.send(answer)

    def _obey(self, connection: socket.socket, word: str, name: str, fds: tuple[int, ...]) -> bytes:
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
            with socket_copy(fd) as parcel:
                held = fd_bundle.unpack(parcel)
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
            parcel = fd_bundle.pack(label, fds)
            with parcel.kept, parcel.receipt:
                seqpacket.send(connection, f"parcel {name}".encode(), fds=(parcel.kept.fileno(),))
                if seqpacket.receive(connection, LIMIT).data != b"next":
                    raise OSError("the guard does not listen")
        connection.settimeout(None)


def _accepted(listener: socket.socket) -> socket.socket:
    """The next connection, whatever it takes: who ends here takes everything with it that is held."""
    while True:
        try:
            return listener.accept()[0]
        except OSError:
            time.sleep(_AGAIN)


def main(path: Path) -> None:
    """Listen, leave for the background, and hold."""
    with suppress(FileNotFoundError):
        path.unlink()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as listener:
        before = os.umask(0o177)
        listener.bind(str(path))
        os.umask(before)
        ready, telling = os.pipe()
        if os.fork():
            os.close(telling)
            # Whoever started it learns by our end that it listens, or that it never will.
            os._exit(0 if os.read(ready, 1) else 1)
        os.close(ready)
        # Not before the fork: the kernel remembers who called this as the peer of all who connect.
        listener.listen(8)
        os.write(telling, b"!")
        os.close(telling)
        HolderProcess().run(listener)
        with suppress(OSError):
            path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
