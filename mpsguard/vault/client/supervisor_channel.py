"""A process' channel to its supervisor: one request at a time, each with a deadline."""

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Self

import msgspec

from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.descriptors.io_fence import FencePass
from mpsguard.linux.sockets.request_channel import Exchange, RequestChannel
from mpsguard.vault.wire import supervisor_wire as wire

DEADLINE: Final = 10.0
"""Seconds for an answer. Before it hands connections over, the supervisor stops a predecessor that still lives."""

_MOST_DIGITS: Final = 9


class SupervisorGoneError(Exception):
    """The supervisor has ended, or does not answer: connections are no longer kept."""


class NotKeptError(Exception):
    """The supervisor refuses: too many connections, a tag is in use, or this is not the active process."""


class SupervisorChannel:
    """Owns the socket and the fence pass. Safe for use by several threads, not by a forked child."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = RequestChannel(sock, wire.MAX_PACKET, wire.decode_answer)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._fence_pass: FencePass | None = None

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return the channel that MPSGUARD_SUPERVISOR names, now close-on-exec; None without a valid one.

        The variable is removed from the environment, so that a child does not use its parent's channel.
        """
        number = os.environ.pop(wire.VARIABLE, "")
        # Reject numbers longer than any descriptor's, for which int() and the kernel raise other errors.
        if not number.isdecimal() or len(number) > _MOST_DIGITS:
            return None
        try:
            sock = socket.socket(fileno=int(number))
        except OSError:
            return None
        if not _may_be_channel(sock):
            # Only the variable was inherited: the number belongs to an unrelated descriptor.
            sock.detach()
            return None
        sock.set_inheritable(False)
        return cls(sock)

    @property
    def open(self) -> bool:
        """Whether this process owns the channel and no request on it has failed."""
        return self._channel.open and os.getpid() == self._pid

    def close(self) -> None:
        """Close everything; safe to call twice. No thread may use the fence pass then or later."""
        self._channel.close()
        if self._fence_pass is not None:
            self._fence_pass.close()

    def send(self, message: wire.Request) -> None:
        """Send a message that has no answer; raise SupervisorGoneError."""
        with self._lock, self._named_errors():
            self._channel.tell(wire.encode(message), due=time.monotonic() + DEADLINE)

    @property
    def fence_pass(self) -> FencePass | None:
        """The pass through the I/O fence of this process' connections; None without a fence.

        It stays valid after the supervisor's end; a fence that was closed by then stays closed.
        """
        return self._fence_pass if os.getpid() == self._pid else None

    def open_fence_pass(self) -> None:
        """Request an I/O fence, unless there is one already; without a supervisor nothing happens."""
        with suppress(NotKeptError, SupervisorGoneError):
            if self._fence_pass is None:
                self._adopt_fence_pass(self.ask(wire.Fence(0), ()))

    def _adopt_fence_pass(self, fds: Sequence[int]) -> None:
        with self._lock:
            if self._fence_pass is None and len(fds) == 1:
                self._fence_pass = FencePass(fds[0])
            else:
                close_all(fds)

    def ask(self, request: wire.Keep | wire.Accept | wire.Fence, fds: Sequence[int]) -> tuple[int, ...]:
        """Send a request and return the descriptors of its answer, which the caller owns.

        Raises:
            NotKeptError: the supervisor refuses.
            SupervisorGoneError: it has ended, or did not answer in time.
        """
        with self._exchange(request, fds) as (exchange, number):
            answer, received = _received(exchange, number)
        return _granted(answer, received)

    def take(self) -> dict[int, int]:
        """Return copies of all kept connections, descriptors by tag, owned by the caller.

        Raises:
            NotKeptError: this process is not the active one.
            SupervisorGoneError: the supervisor has ended, or did not answer in time.
        """
        given: dict[int, int] = {}
        try:
            with self._exchange(wire.Take(0), ()) as (exchange, number):
                more = True
                while more:
                    answer, fds = _received(exchange, number)
                    if isinstance(answer, wire.Refused):
                        break
                    if not isinstance(answer, wire.Given) or len(fds) != len(answer.tags):
                        raise _unexpected(answer, fds)
                    given.update(zip(answer.tags, fds, strict=True))
                    more = answer.more
            _granted(answer, ())
        except BaseException:
            close_all(given.values())
            raise
        return given

    @contextmanager
    def _exchange(
        self, request: wire.Keep | wire.Accept | wire.Fence | wire.Take, fds: Sequence[int]
    ) -> Iterator[tuple[Exchange[wire.Answer], int]]:
        """Send a request, and receive its answers in a block; raise SupervisorGoneError."""
        with self._lock, self._named_errors(), self._channel.exchange(time.monotonic() + DEADLINE) as exchange:
            number = self._channel.next_id()
            exchange.send(wire.encode(msgspec.structs.replace(request, id=number)), fds)
            yield exchange, number

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        if not self.open:
            raise SupervisorGoneError("there is no supervisor")
        try:
            yield
        except OSError as error:
            raise SupervisorGoneError(f"the supervisor: {error.strerror}") from None


def _received(exchange: Exchange[wire.Answer], number: int) -> tuple[wire.Answer, tuple[int, ...]]:
    answer, fds = exchange.receive()
    if answer.id != number:
        raise _unexpected(answer, fds)
    return answer, fds


def _unexpected(answer: wire.Answer, fds: Sequence[int]) -> OSError:
    """Close ``fds`` and return the error for an answer that belongs to no request."""
    close_all(fds)
    return OSError(errno.EPROTO, f"unexpected {type(answer).__name__} with {len(fds)} descriptors")


def _granted(answer: wire.Answer, fds: tuple[int, ...]) -> tuple[int, ...]:
    """Return the descriptors of an answer; raise NotKeptError for a refusal."""
    if isinstance(answer, wire.Refused):
        close_all(fds)
        raise NotKeptError(answer.reason)
    return fds


def _may_be_channel(sock: socket.socket) -> bool:
    """Return whether this could be a channel.

    A channel is one of a socket pair, without a name; a vault connection has a named peer.
    """
    if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        return False
    try:
        return not sock.getpeername()
    except OSError:
        return False
