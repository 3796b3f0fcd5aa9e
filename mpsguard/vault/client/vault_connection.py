"""A connection to the vault: one request at a time, each with a deadline, and a callback for notices."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Final

from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.sockets.request_channel import Exchange, RequestChannel, connected
from mpsguard.linux.sockets.seqpacket import KERNEL_MAX_FDS
from mpsguard.vault.wire import wire
from mpsguard.vault.wire.address import DEFAULT_SOCKET, RUN_DIRECTORY_VARIABLE, SOCKET_VARIABLE
from mpsguard.vault.wire.errors import UnavailableError, from_code

_OF_CONNECTION: Final = 0
"""Id of a failure that answers no request in particular, but ends the connection."""
_RETRY: Final = 0.01
"""Seconds between two attempts while no vault listens."""


class LostError(Exception):
    """The connection broke; the last request may have been carried out or not."""


Answered = tuple[wire.Answer, tuple[int, ...]]


class Connection:
    """Owns the socket. Not for use by two threads at once."""

    def __init__(
        self,
        path: str,
        patience: float,
        deadline: float,
        on_notice: Callable[[wire.Notice, tuple[int, ...]], None],
    ) -> None:
        """Connect to the vault, waiting until it listens.

        Args:
            path: the vault's socket.
            patience: seconds to wait for it.
            deadline: seconds for the answer to each request.
            on_notice: called with each notice and its descriptors, which it must close.

        Raises:
            UnavailableError: no vault accepted the connection in time.
        """
        self._deadline = deadline
        self._on_notice = on_notice
        # It lingers: its end would end the lease, which the next connection reclaims.
        self._channel = RequestChannel(
            _connect(path, time.monotonic() + patience), wire.MAX_PACKET, wire.decode_reply, lingers=True
        )

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        self._channel.close()

    def next_id(self) -> int:
        """Return the id for the next request."""
        return self._channel.next_id()

    def ask(self, request: wire.Request, fds: Sequence[int] = (), *, due: float | None = None) -> Answered:
        """Send a request, and its descriptors when the vault is ready for them; return the answer with its descriptors.

        ``due`` (time.monotonic) may be earlier than the connection's own deadline.

        Raises:
            VaultError: the vault refused.
            LostError: the connection broke, or an earlier request was interrupted.
            UnavailableError: no answer in time, or none that this process can take.
        """
        due = min(time.monotonic() + self._deadline, inf if due is None else due)
        with self._named_errors(), self._channel.exchange(due) as exchange:
            exchange.send(wire.encode(request))
            answer, came = self._answer(exchange, request.id)
            if isinstance(answer, wire.Proceed):
                for start in range(0, len(fds), KERNEL_MAX_FDS):
                    some = tuple(fds[start : start + KERNEL_MAX_FDS])
                    exchange.send(wire.encode(wire.Chunks(request.id, len(some))), some)
                answer, came = self._answer(exchange, request.id)
        if isinstance(answer, wire.Failure):
            close_all(came)
            raise from_code(answer.code, answer.message)
        return answer, came

    def more_fds(self, id: int, count: int) -> tuple[int, ...]:  # noqa: A002 - the wire's own word
        """Return the next ``count`` descriptors of the region that is being opened; raise LostError."""
        got: list[int] = []
        try:
            with self._named_errors(), self._channel.exchange(time.monotonic() + self._deadline) as exchange:
                while len(got) < count:
                    try:
                        answer, fds = self._answer(exchange, id)
                    except TimeoutError:
                        raise LostError("the vault did not send all descriptors") from None
                    got += fds
                    if not isinstance(answer, wire.MoreChunks) or not fds:
                        raise LostError(f"the vault sent {type(answer).__name__} instead of descriptors")
        except BaseException:
            close_all(got)
            raise
        return tuple(got)

    def listen(self, timeout: float | None) -> bool:
        """Wait for one notice and handle it; return False if none came in time. Raise LostError."""
        with (
            self._named_errors(),
            self._channel.exchange(None if timeout is None else time.monotonic() + timeout) as exchange,
        ):
            try:
                answer, fds = exchange.receive()
            except TimeoutError:
                return False
            if isinstance(answer, wire.Notice):
                self._on_notice(answer, fds)
            else:
                close_all(fds)
        return True

    def _answer(self, exchange: Exchange[wire.Answer | wire.Notice], id: int) -> Answered:  # noqa: A002
        while True:
            message, fds = exchange.receive()
            if isinstance(message, wire.Notice):
                self._on_notice(message, fds)
            elif message.id == id or (isinstance(message, wire.Failure) and message.id == _OF_CONNECTION):
                return message, fds
            else:
                close_all(fds)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise UnavailableError(f"no answer from the vault within {self._deadline:g} s") from None
        except ConnectionError:
            raise LostError("the vault closed the connection") from None
        except OSError as error:
            raise UnavailableError(f"version {wire.VERSION} of the vault's messages: {error.strerror}") from None


def _connect(path: str, due: float) -> socket.socket:
    reason = f"{path}: the vault does not accept"
    while True:
        try:
            return connected(path, due)
        except TimeoutError:
            raise UnavailableError(reason) from None
        except (FileNotFoundError, ConnectionRefusedError) as error:
            reason = f"no vault at {path}: {error.strerror}"
            if path == DEFAULT_SOCKET:
                reason += f" ({SOCKET_VARIABLE} or {RUN_DIRECTORY_VARIABLE} names another place)"
        except OSError as error:
            raise UnavailableError(f"{path}: {error.strerror}") from None
        if time.monotonic() + _RETRY > due:
            raise UnavailableError(reason)
        time.sleep(_RETRY)


def unexpected(answer: wire.Answer, fds: Sequence[int]) -> UnavailableError:
    """Close ``fds`` and return the error for an answer of the wrong type."""
    close_all(fds)
    return UnavailableError(f"the vault answered with {type(answer).__name__}")
