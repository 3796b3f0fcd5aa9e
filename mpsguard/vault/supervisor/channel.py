"""The supervisor's end of its channels to the processes, and the connections that it keeps for them."""

import os
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.seqpacket import KERNEL_MAX_FDS
from mpsguard.linux.sockets.socket_copy import socket_copy
from mpsguard.vault.wire import supervisor_wire as wire

_AT_ONCE: Final = 64
"""Messages read from one process before others get their turn."""
_AT_THE_END: Final = 65536
"""Messages read from a process that has ended: more than a socket's queue holds."""
_MOST: Final = 4096
_OUR_OWN: Final = 64
"""Descriptors reserved for the supervisor itself."""

MessageHandler = Callable[["ProgramChannel", wire.Ready | wire.Promoted | wire.Take | wire.Fence], None]


class KeptSockets:
    """Owns copies of the connections that the program wants to be kept, by their tags."""

    def __init__(self, most: int | None = None) -> None:
        """Keep at most ``most`` connections; None: 4096, or as many as RLIMIT_NOFILE leaves."""
        self._most = (
            max(min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OUR_OWN), 0) if most is None else most
        )
        self._fds: dict[int, int] = {}

    def refusal(self, tag: int) -> str | None:
        """Return the reason why a connection with that tag cannot be kept, or None."""
        if tag in self._fds:
            return f"tag {tag} is in use"
        if len(self._fds) >= self._most:
            return f"no more than {self._most} connections are kept"
        return None

    def add(self, tag: int, fd: int) -> None:
        """Take ownership of a descriptor; there must be no `refusal`."""
        assert self.refusal(tag) is None
        self._fds[tag] = fd

    def drop(self, tag: int) -> None:
        """Close the connection with that tag, if there is one."""
        fd = self._fds.pop(tag, None)
        if fd is not None:
            os.close(fd)

    def all(self) -> list[tuple[int, int]]:
        """Return tags and descriptors, which stay owned by this object."""
        return list(self._fds.items())

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        for tag in list(self._fds):
            self.drop(tag)


class ProgramChannel:
    """Owns the supervisor's end for one process. Invalid input can affect only the process' own program."""

    def __init__(self, kept: KeptSockets, on_message: MessageHandler) -> None:
        """Create a socket pair; ``on_message`` is called for messages that are not about a single connection."""
        self._kept = kept
        self._on_message = on_message
        self.serves = False
        """Whether this is the active process: only its connections are kept, and only it may take them."""
        self._over = False
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 after `close`."""
        return self._ours.fileno()

    def close(self) -> None:
        """Close both ends; safe to call twice. No further answers are sent."""
        self._over = True
        self._ours.close()
        self.theirs.close()

    def read(self) -> bool:
        """Handle waiting messages, up to a limit; return False at the end of the channel, which must then be closed."""
        return self._read(_AT_ONCE)

    def read_rest(self) -> None:
        """Handle all messages of a process that has ended."""
        self._read(_AT_THE_END)

    def give_all(self, request: wire.Take) -> None:
        """Answer a `Take`."""
        kept = self._kept.all()
        while True:
            some, kept = kept[:KERNEL_MAX_FDS], kept[KERNEL_MAX_FDS:]
            tags, fds = tuple(tag for tag, _ in some), tuple(fd for _, fd in some)
            self._answer(wire.Given(request.id, tags, bool(kept)), fds)
            if not kept:
                return

    def give_fence_pass(self, request: wire.Fence, fence_pass: int) -> None:
        """Answer a `Fence`; the descriptor stays owned by the caller."""
        self._answer(wire.Done(request.id), (fence_pass,))

    def refuse(self, id: int, reason: str) -> None:  # noqa: A002 - the wire's own word
        """Answer a request with a refusal."""
        self._answer(wire.Refused(id, reason))

    def _read(self, most: int) -> bool:
        for _ in range(most):
            if self._over:
                return False
            try:
                packet = seqpacket.receive(self._ours, wire.MAX_PACKET, max_fds=1)
            except BlockingIOError:
                return True
            except OSError:
                packet = seqpacket.Packet(b"", None, (), False)
            try:
                if packet.end or not self._handle(packet):
                    self._over = True
            finally:
                # Kept connections are copies.
                for fd in packet.fds:
                    os.close(fd)
        return not self._over

    def _handle(self, packet: seqpacket.Packet) -> bool:
        """Handle a message; return False if it is invalid."""
        try:
            request = wire.decode_request(packet.data)
        except msgspec.DecodeError:
            return False
        match request:
            case wire.Ready() | wire.Promoted() | wire.Take() | wire.Fence():
                self._on_message(self, request)
            case wire.Drop(tag):
                if self.serves:
                    self._kept.drop(tag)
            case wire.Keep() | wire.Accept():
                self._keep(request, packet)
        return True

    def _keep(self, request: wire.Keep | wire.Accept, packet: seqpacket.Packet) -> None:
        refusal = self._kept.refusal(request.tag)
        if not self.serves:
            refusal = "another process is the active one"
        elif refusal is None and len(packet.fds) != 1:
            refusal = "no descriptor came with it, or the supervisor has no room for it (RLIMIT_NOFILE)"
        if refusal is not None:
            self.refuse(request.id, refusal)
            return
        try:
            kept = _accepted(packet.fds[0]) if isinstance(request, wire.Accept) else _connection(packet.fds[0])
        except OSError as error:
            self.refuse(request.id, error.strerror or str(error))
            return
        if kept is not None:
            self._kept.add(request.tag, kept)
        given = (kept,) if kept is not None and isinstance(request, wire.Accept) else ()
        self._answer(wire.Done(request.id), given)

    def _answer(self, answer: wire.Answer, fds: tuple[int, ...] = ()) -> None:
        if self._over:
            return
        try:
            seqpacket.send(self._ours, wire.encode(answer), fds=fds)
        except OSError:
            # The process does not read its answers, or has ended. Its kept connections stay kept.
            self._over = True
            self._ours.shutdown(socket.SHUT_RDWR)


def _connection(fd: int) -> int:
    """Return a copy of a stream socket's descriptor; raise OSError for any other descriptor."""
    sock = socket_copy(fd)
    try:
        if sock.type != socket.SOCK_STREAM or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise OSError("is no connection")
        return sock.detach()
    finally:
        sock.close()


def _accepted(fd: int) -> int | None:
    """Accept from a listening socket; return None if no connection waits. Raise OSError."""
    if os.get_blocking(fd):
        raise OSError("the listening socket would block")
    with socket_copy(fd) as listener, suppress(BlockingIOError, ConnectionAbortedError):
        listener.setblocking(False)
        sock, _ = listener.accept()
        return sock.detach()
    return None
