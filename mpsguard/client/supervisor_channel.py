"""A process' channel to its supervisor: one request at a time, each with a deadline."""

import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

import msgspec

from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.descriptors.io_fence import FencePass
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.seqpacket import KERNEL_MAX_FDS
from mpsguard.supervisor import wire

DEADLINE: Final = 10.0
"""Seconds for an answer. Before it hands connections over, the supervisor stops a predecessor that still lives."""

_MOST_DIGITS: Final = 9
_TIMEVAL: Final = struct.Struct("ll")


class SupervisorGoneError(Exception):
    """The supervisor has ended, or does not answer: connections are no longer kept."""


class NotKeptError(Exception):
    """The supervisor refuses: too many connections, a tag is in use, or this is not the active process."""


class SupervisorChannel:
    """Owns the socket and the fence pass. Safe for use by several threads, not by a forked child."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._last_id = 0
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
        return self._socket.fileno() >= 0 and os.getpid() == self._pid

    def close(self) -> None:
        """Close everything; safe to call twice. No thread may use the fence pass then or later."""
        self._socket.close()
        if self._fence_pass is not None:
            self._fence_pass.close()

    def send(self, message: wire.Request, fds: Sequence[int] = ()) -> None:
        """Send a message that has no answer; raise SupervisorGoneError."""
        with self._lock:
            self._send(message, fds, time.monotonic() + DEADLINE)

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
        with self._lock:
            due = time.monotonic() + DEADLINE
            self._last_id += 1
            self._send(msgspec.structs.replace(request, id=self._last_id), fds, due)
            return self._receive(due)[1]

    def take(self) -> dict[int, int]:
        """Return copies of all kept connections, descriptors by tag, owned by the caller.

        Raises:
            NotKeptError: this process is not the active one.
            SupervisorGoneError: the supervisor has ended, or did not answer in time.
        """
        received: dict[int, int] = {}
        with self._lock:
            due = time.monotonic() + DEADLINE
            self._last_id += 1
            self._send(wire.Take(self._last_id), (), due)
            try:
                more = True
                while more:
                    answer, fds = self._receive(due)
                    if not isinstance(answer, wire.Given) or len(fds) != len(answer.tags):
                        close_all(fds)
                        raise self._broken(f"unexpected {type(answer).__name__} with {len(fds)} descriptors")
                    received.update(zip(answer.tags, fds, strict=True))
                    more = answer.more
            except BaseException:
                close_all(received.values())
                raise
        return received

    def _send(self, message: wire.Request, fds: Sequence[int], due: float) -> None:
        self._limit(socket.SO_SNDTIMEO, due)
        try:
            seqpacket.send(self._socket, wire.encode(message), fds=tuple(fds))
        except (BlockingIOError, ConnectionError):
            raise self._broken("it does not read") from None

    def _receive(self, due: float) -> tuple[wire.Answer, tuple[int, ...]]:
        while True:
            self._limit(socket.SO_RCVTIMEO, due)
            try:
                packet = seqpacket.receive(self._socket, wire.MAX_PACKET, max_fds=KERNEL_MAX_FDS)
            except (BlockingIOError, ConnectionError):
                raise self._broken("it does not answer") from None
            try:
                if packet.end:
                    raise self._broken("it has ended")
                if packet.truncated:
                    raise self._broken("there is no room for more descriptors in this process (RLIMIT_NOFILE)")
                answer = wire.decode_answer(packet.data)
            except msgspec.DecodeError as error:
                close_all(packet.fds)
                raise self._broken(f"unknown message: {error}") from None
            except SupervisorGoneError:
                close_all(packet.fds)
                raise
            if answer.id == self._last_id and not isinstance(answer, wire.Refused):
                return answer, packet.fds
            close_all(packet.fds)
            if isinstance(answer, wire.Refused) and answer.id == self._last_id:
                raise NotKeptError(answer.reason)

    def _limit(self, option: int, due: float) -> None:
        if not self.open:
            raise SupervisorGoneError("there is no supervisor")
        left = max(due - time.monotonic(), 1e-6)
        self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(left), max(int(left % 1 * 1e6), 1)))

    def _broken(self, why: str) -> SupervisorGoneError:
        # A late answer would be mistaken for the answer to the next request.
        self._socket.close()
        return SupervisorGoneError(f"the supervisor: {why}")


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
