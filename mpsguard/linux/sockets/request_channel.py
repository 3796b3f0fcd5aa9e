"""Requests over a SEQPACKET socket, one at a time, each with a deadline. Any interruption ends the channel.

A request that is broken off (deadline, signal handler that raises, end of the peer, OSError) leaves its answer in the
socket, or on the way to it, where it would answer the next request. So nothing is asked on such a channel again.
"""

import errno
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Generic, TypeVar

import msgspec

from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.seqpacket import KERNEL_MAX_FDS

T = TypeVar("T")

RETRY: Final = 0.01
"""Seconds between two attempts while too many descriptors are in flight."""

_TIMEVAL: Final = struct.Struct("@ll")


class RequestChannel(Generic[T]):
    """Owns a blocking socket. Not for use by two threads at once."""

    def __init__(
        self,
        sock: socket.socket,
        limit: int,
        decode: Callable[[bytes], T],
        *,
        most_fds: int = KERNEL_MAX_FDS,
        lingers: bool = False,
    ) -> None:
        """Take ownership of a connected socket.

        Args:
            sock: its end.
            limit: bytes of an answer.
            decode: of an answer; may raise msgspec.DecodeError.
            most_fds: descriptors of an answer.
            lingers: whether the socket of an ended channel stays until `close`, because the peer would take its end for
                that of this process.
        """
        self._socket: Final = sock
        self._limit = limit
        self._decode = decode
        self._most_fds = most_fds
        self._lingers = lingers
        self._last_id = 0
        self._ended = False

    @property
    def open(self) -> bool:
        """Whether requests can be sent: no earlier one was interrupted."""
        return not self._ended

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        self._ended = True
        self._socket.close()

    def next_id(self) -> int:
        """Return the id for the next request."""
        self._last_id += 1
        return self._last_id

    def ask(self, data: bytes, fds: Sequence[int] = (), *, due: float | None) -> tuple[T, tuple[int, ...]]:
        """Send a request and return its answer, with its descriptors: one exchange of `exchange`."""
        with self.exchange(due) as exchange:
            exchange.send(data, fds)
            return exchange.receive()

    def tell(self, data: bytes, *, due: float) -> None:
        """Send a message that has no answer; BrokenPipeError if the peer has ended, and otherwise as `exchange`."""
        with self.exchange(due) as exchange:
            exchange.send(data, despite_end=False)

    @contextmanager
    def exchange(self, due: float | None) -> Iterator["Exchange[T]"]:
        """Exchange messages until ``due`` (time.monotonic; None: no limit). The channel ends if the block raises.

        Raises:
            TimeoutError: the deadline.
            ConnectionError: the peer has ended, or the channel had.
            OSError: EMFILE if there is no room for the answer's descriptors, EBADMSG for an unknown answer.
        """
        if self._ended:
            raise ConnectionResetError(errno.ECONNRESET, "ended before")
        try:
            yield Exchange(self, due)
        except BaseException:
            self._ended = True
            if not self._lingers:
                self._socket.close()
            raise

    def _send(self, data: bytes, fds: Sequence[int], due: float | None) -> None:
        while True:
            _limit(self._socket, socket.SO_SNDTIMEO, due)
            try:
                seqpacket.send(self._socket, data, fds=tuple(fds))
            except BlockingIOError:
                raise TimeoutError(errno.ETIMEDOUT, "does not read") from None
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                # The kernel counts a user's descriptors in flight over all processes; reading them lowers the count.
                if due is not None and time.monotonic() + RETRY > due:
                    raise TimeoutError(errno.ETIMEDOUT, "too many descriptors are in flight") from None
                time.sleep(RETRY)
            else:
                return

    def _receive(self, due: float | None) -> tuple[T, tuple[int, ...]]:
        _limit(self._socket, socket.SO_RCVTIMEO, due)
        try:
            packet = seqpacket.receive(self._socket, self._limit, max_fds=self._most_fds)
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, "does not answer") from None
        try:
            if packet.end or not packet.data:
                raise ConnectionResetError(errno.ECONNRESET, "has ended")
            if packet.truncated:
                raise OSError(errno.EMFILE, "no room for its descriptors: too many open files (RLIMIT_NOFILE)")
            if len(packet.fds) > self._most_fds:
                # The kernel had room where it would have put the sender's credentials.
                raise OSError(errno.EBADMSG, f"unknown message: {len(packet.fds)} descriptors")
            return self._decode(packet.data), packet.fds
        except msgspec.DecodeError as error:
            close_all(packet.fds)
            raise OSError(errno.EBADMSG, f"unknown message: {error}") from None
        except BaseException:
            close_all(packet.fds)
            raise


class Exchange(Generic[T]):
    """A request that is under way, with its messages in both directions."""

    def __init__(self, channel: RequestChannel[T], due: float | None) -> None:
        self._channel = channel
        self._due = due

    def send(self, data: bytes, fds: Sequence[int] = (), *, despite_end: bool = True) -> None:
        """Send a message; raise as `RequestChannel.exchange` does.

        Args:
            data: the message.
            fds: stay owned by the caller.
            despite_end: ignore the end of the peer: its last messages can still be received.
        """
        with suppress(*((BrokenPipeError,) if despite_end else ())):
            self._channel._send(data, fds, self._due)

    def receive(self) -> tuple[T, tuple[int, ...]]:
        """Return the next message, and its descriptors, owned by the caller."""
        return self._channel._receive(self._due)


def connected(address: str | bytes, due: float) -> socket.socket:
    """Return a new connection, owned by the caller, of which no call waits longer than its deadline.

    Raises:
        TimeoutError: the listener's backlog stayed full until ``due`` (time.monotonic).
        OSError: as connect(2).
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        _limit(sock, socket.SO_SNDTIMEO, due)
        sock.connect(address)
    except BlockingIOError:
        sock.close()
        raise TimeoutError(errno.ETIMEDOUT, "does not accept") from None
    except BaseException:
        sock.close()
        raise
    return sock


def _limit(sock: socket.socket, option: int, due: float | None) -> None:
    """Set the kernel's limit for the next call: settimeout() makes a socket non-blocking, and connect(2) then fails."""
    left = 0.0 if due is None else due - time.monotonic()
    if due is not None and left <= 0:
        raise TimeoutError(errno.ETIMEDOUT, "no time is left")
    # Zero means without limit.
    value = (0, 0) if due is None else (int(left), max(int(left % 1 * 1e6), 1))
    sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(*value))
