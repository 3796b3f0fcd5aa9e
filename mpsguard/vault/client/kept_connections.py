"""Network connections that outlive their process, because the supervisor (`mpsguard run --standby`) keeps copies.

    connections = KeptConnections.from_environment(io_fence=True)
    while (sock := connections.accept(listener, tag=next_tag)) is not None: ...
    ...
    with connections.in_use():
        sock.send(answer)
    ...
    connections.drop(tag)   # when the connection is no longer needed
    sock.close()

and in the process that was promoted:

    for tag, sock in connections.take().items():
        sent = tcp_progress.written(sock)   # continue behind these bytes

Bytes that were read from a connection and not yet published are lost with the process: look at a request with MSG_PEEK,
publish what is to be done about it, and only then read it from the socket.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.descriptors.io_fence import FenceShutError
from mpsguard.vault.client.supervisor_channel import NotKeptError, SupervisorChannel, SupervisorGoneError
from mpsguard.vault.wire import supervisor_wire as wire

__all__ = ["KeptConnections", "NotKeptError", "SupersededError", "tell_ready"]


class SupersededError(Exception):
    """Another process has taken over the connections; this one must not use them any more."""


class KeptConnections:
    """A program's connections that its supervisor keeps. Safe for use by several threads, not by a forked child.

    Without a supervisor (the program was started without one, or the supervisor has ended) `kept` is False, `keep` and
    `drop` have no effect, `accept` only accepts, and `take` returns nothing. No method raises for that reason.
    """

    def __init__(self, channel: SupervisorChannel | None, *, io_fence: bool = False) -> None:
        self._channel = channel
        if channel is not None and io_fence:
            channel.open_fence_pass()

    @classmethod
    def from_environment(cls, *, io_fence: bool = False) -> Self:
        """Use the channel that MPSGUARD_SUPERVISOR names; all objects of one process share it.

        Args:
            io_fence: this process uses kept connections only inside `in_use`. Requesting a fence costs a round trip to
                the supervisor, so a standby should do it before it is ready.
        """
        return cls(_channel(), io_fence=io_fence)

    @property
    def kept(self) -> bool:
        """Whether a supervisor keeps connections."""
        return self._channel is not None and self._channel.open

    def keep(self, sock: socket.socket, tag: int) -> None:
        """Have the supervisor keep a connection open beyond the end of this process.

        Costs a round trip to the supervisor. If the process dies between accept(2) and this call, the connection is
        lost; `accept` has no such gap.

        Args:
            sock: the connection.
            tag: 0 to 2**63-1; names the connection in `take`.

        Raises:
            NotKeptError: the supervisor refuses.
            ValueError: the tag is out of range.
        """
        _check(tag)
        if self._channel is None:
            return
        with suppress(SupervisorGoneError):
            close_all(self._channel.ask(wire.Keep(0, tag), (sock.fileno(),)))

    def accept(self, listener: socket.socket, tag: int) -> socket.socket | None:
        """Accept a connection through the supervisor, which keeps it from the first moment; None if none waits.

        The new socket is close-on-exec and blocking. ``listener`` becomes non-blocking in all processes that share it:
        wait until it is readable.

        Raises:
            NotKeptError: the supervisor refuses; the connection stays in the backlog.
            ValueError: the tag is out of range.
            OSError: accept(2) failed.
        """
        _check(tag)
        listener.setblocking(False)
        if self._channel is not None:
            with suppress(SupervisorGoneError):
                fds = self._channel.ask(wire.Accept(0, tag), (listener.fileno(),))
                return _blocking(fds[0]) if fds else None
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        sock.setblocking(True)
        return sock

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Enter a block in which kept connections may be read, written and shut down.

        A superseded process may be inside a system call of the driver for a long time, and cannot be proved harmless
        from outside. With ``io_fence`` its successor need not wait for it outside of such blocks: it gets the
        connections as soon as it is promoted. So keep blocks short, and CUDA calls out of them. Blocks may be nested,
        and several threads may be in one; a forked child must not use the connections. A block costs three system
        calls, and none without ``io_fence``.

        Raises:
            SupersededError: on entering, if another process has taken over.
        """
        fence_pass = self._channel.fence_pass if self._channel is not None else None
        if fence_pass is None:
            yield
            return
        try:
            fence_pass.__enter__()
        except FenceShutError as error:
            raise SupersededError(str(error)) from None
        try:
            yield
        finally:
            fence_pass.__exit__()

    def drop(self, tag: int) -> None:
        """Stop keeping a connection; call this before closing it, otherwise it stays open. Unknown tags are ignored.

        Raises:
            ValueError: the tag is out of range.
        """
        _check(tag)
        _send_if_supervised(self._channel, wire.Drop(tag))

    def take(self) -> dict[int, socket.socket]:
        """Return copies of all kept connections by tag, for a process that was promoted. They stay kept.

        Before the answer, a predecessor that still lives is fenced (`in_use`) or stopped, so that it cannot write; it
        is ended a little later.

        Raises:
            NotKeptError: this process is a standby that was not promoted.
        """
        if self._channel is None:
            return {}
        try:
            return {tag: _blocking(fd) for tag, fd in self._channel.take().items()}
        except SupervisorGoneError:
            return {}

    def ready(self) -> None:
        """Tell the supervisor that this process serves, or is a standby to promote; `Session.ready` does so too."""
        _send_if_supervised(self._channel, wire.Ready())


def tell_ready(*, promoted: bool = False) -> None:
    """Tell the supervisor, if any, that this process is ready or (``promoted``) was promoted. For `Session`."""
    _send_if_supervised(_channel(), wire.Promoted() if promoted else wire.Ready())


def _send_if_supervised(channel: SupervisorChannel | None, message: wire.Request) -> None:
    if channel is None:
        return
    with suppress(SupervisorGoneError):
        channel.send(message)


def _check(tag: int) -> None:
    if not isinstance(tag, int):
        raise TypeError(f"tag: {tag!r} is not a whole number")
    if not 0 <= tag < 1 << 63:
        raise ValueError(f"tag: {tag} is not from 0 to 2**63-1")


def _blocking(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    return sock


_lock = threading.Lock()
_channels: dict[int, SupervisorChannel | None] = {}
"""The channel of this process, by its pid: a forked child must not read its parent's answers."""


def _channel() -> SupervisorChannel | None:
    with _lock:
        pid = os.getpid()
        if pid not in _channels:
            _channels[pid] = None if _channels else SupervisorChannel.from_environment()
        return _channels[pid]
