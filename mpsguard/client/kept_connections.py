"""Network connections that outlive the process that serves them: kept by the supervisor, `mpsguard run --standby`.

    connections = Connections.from_environment(gated=True)
    while (sock := connections.accept(listener, tag=next_tag)) is not None: ...
    ...
    with connections.in_use():
        sock.send(answer)
    ...
    connections.drop(tag)   # when it is over
    sock.close()

and in the process that was promoted:

    for tag, sock in connections.take().items():
        sent = stream.written(sock)   # what lies behind it is still to be written

What is read from a connection and not yet published is lost with the process: look at a request with MSG_PEEK, publish
what is to be done about it, and only then take it out of the socket.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from mpsguard.client.supervisor_channel import DeskClosedError, NotKeptError, SupervisorChannel
from mpsguard.linux.fd_closer import close_all
from mpsguard.linux.io_fence import GateShutError
from mpsguard.supervisor import wire

__all__ = ["KeptConnections", "NotKeptError", "SupersededError", "tell_ready"]


class SupersededError(Exception):
    """Another process goes on with the connections: this one has no more to do."""


class KeptConnections:
    """What a program's supervisor keeps for it. Safe for use by several threads, not by a child made by fork.

    Without a supervisor (the program was started by itself, or the supervisor has ended) it does nothing: `kept` is
    False, `keep` and `drop` have no effect, `accept` accepts, and there is nothing to `take`. No method raises for that
    reason.
    """

    def __init__(self, desk: SupervisorChannel | None, *, gated: bool = False) -> None:
        self._desk = desk
        if desk is not None and gated:
            desk.open_passage()

    @classmethod
    def from_environment(cls, *, gated: bool = False) -> Self:
        """By the desk that MPSGUARD_DESK names; all that one process makes use the same one.

        ``gated``: this process uses kept connections in blocks of `in_use` alone, all of it. To ask for that costs a
        round trip to the supervisor: a standby should do it before it is ready.
        """
        return cls(_desk(), gated=gated)

    @property
    def kept(self) -> bool:
        """Whether there is somebody who keeps connections."""
        return self._desk is not None and self._desk.open

    def keep(self, sock: socket.socket, tag: int) -> None:
        """Have the end of this process not close a connection. ``tag`` (0 to 2**63-1) is its name for `take`.

        Costs a round trip to the supervisor. A process that dies between accept(2) and this takes the connection with
        it; `accept` has no such gap. NotKeptError; ValueError for a tag that is none.
        """
        _check(tag)
        if self._desk is None:
            return
        with suppress(DeskClosedError):
            close_all(self._desk.ask(wire.Keep(0, tag), (sock.fileno(),)))

    def accept(self, listener: socket.socket, tag: int) -> socket.socket | None:
        """Accept a connection that is kept from the first moment, close-on-exec and blocking; None if none waits.

        The supervisor accepts it. ``listener`` becomes non-blocking, in all processes that have it: wait until it is
        readable. NotKeptError (the connection goes on waiting in the backlog), ValueError, and OSError of accept(2).
        """
        _check(tag)
        listener.setblocking(False)
        if self._desk is not None:
            with suppress(DeskClosedError):
                fds = self._desk.ask(wire.Accept(0, tag), (listener.fileno(),))
                return _blocking(fds[0]) if fds else None
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        sock.setblocking(True)
        return sock

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A block in which kept connections are read, written and shut down. SupersededError, on entering.

        Whose turn is over may be inside a system call of the driver for long, and can neither be stopped nor be seen to
        be harmless. A program that is ``gated`` need not be waited for outside of such blocks: its successor is given
        the connections in the moment in which it is known. So keep blocks short, and CUDA out of them. They may lie in
        one another, and several threads may be in one; a child made by fork must leave the connections alone. A block
        costs three system calls; it does nothing in a program that is not ``gated``.
        """
        passage = self._desk.passage if self._desk is not None else None
        if passage is None:
            yield
            return
        try:
            passage.__enter__()
        except GateShutError as error:
            raise SupersededError(str(error)) from None
        try:
            yield
        finally:
            passage.__exit__()

    def drop(self, tag: int) -> None:
        """Have a connection not kept any longer: before it is closed, or it would stay open. ValueError.

        Nothing happens if no connection has that tag.
        """
        _check(tag)
        _tell(self._desk, wire.Drop(tag))

    def take(self) -> dict[int, socket.socket]:
        """Copies of all connections that are kept, by tag: for a process that was promoted. They stay kept.

        A predecessor that still lives is kept out (`in_use`), or stopped, before the answer comes, so that nobody else
        writes, and ended a little later. NotKeptError in a standby that was not promoted.
        """
        if self._desk is None:
            return {}
        try:
            return {tag: _blocking(fd) for tag, fd in self._desk.take().items()}
        except DeskClosedError:
            return {}

    def ready(self) -> None:
        """Tell the supervisor that this process serves, or is a standby that may be promoted; `Session.ready` does."""
        _tell(self._desk, wire.Ready())


def tell_ready(*, promoted: bool = False) -> None:
    """Tell the supervisor, if there is one, that this process is ready, or (``promoted``) was promoted. For Session."""
    _tell(_desk(), wire.Promoted() if promoted else wire.Ready())


def _tell(desk: SupervisorChannel | None, message: wire.Request) -> None:
    if desk is None:
        return
    with suppress(DeskClosedError):
        desk.tell(message)


def _check(tag: int) -> None:
    if not 0 <= tag < 1 << 63:
        raise ValueError(f"tag: {tag} is not from 0 to 2**63-1")


def _blocking(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    return sock


_lock = threading.Lock()
_desks: dict[int, SupervisorChannel | None] = {}
"""The one desk of this process, by its pid: a child made by fork must not take its parent's answers."""


def _desk() -> SupervisorChannel | None:
    with _lock:
        pid = os.getpid()
        if pid not in _desks:
            _desks[pid] = None if _desks else SupervisorChannel.from_environment()
        return _desks[pid]
