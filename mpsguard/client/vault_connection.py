"""A connection to the vault: one request at a time, each with a deadline, and a callback for notices."""

import errno
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.seqpacket import KERNEL_MAX_FDS
from mpsguard.vault import wire
from mpsguard.vault.address import DEFAULT_SOCKET, RUN_DIRECTORY_VARIABLE, SOCKET_VARIABLE
from mpsguard.vault.errors import UnavailableError, from_code

_TIMEVAL: Final = struct.Struct("ll")
_RETRY: Final = 0.01
"""Seconds between two attempts while no vault listens, or while too many descriptors are in flight."""


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
        self._last_id = 0
        self._socket = _connect(path, time.monotonic() + patience)

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        self._socket.close()

    def next_id(self) -> int:
        """Return the id for the next request."""
        self._last_id += 1
        return self._last_id

    def ask(self, request: wire.Request, fds: Sequence[int] = (), *, due: float | None = None) -> Answered:
        """Send a request, and its descriptors when the vault is ready for them; return the answer with its descriptors.

        ``due`` (time.monotonic) may be earlier than the connection's own deadline.

        Raises:
            VaultError: the vault refused.
            LostError: the connection broke.
            UnavailableError: no answer in time. The connection is closed, since a late answer would be mistaken for
                another's.
        """
        if self._socket.fileno() < 0:
            raise LostError("closed before")
        due = min(time.monotonic() + self._deadline, float("inf") if due is None else due)
        try:
            self._send(wire.encode(request), (), due)
            answer, came = self._answer(request.id, due)
            if isinstance(answer, wire.Proceed):
                for start in range(0, len(fds), KERNEL_MAX_FDS):
                    some = tuple(fds[start : start + KERNEL_MAX_FDS])
                    self._send(wire.encode(wire.Chunks(request.id, len(some))), some, due)
                answer, came = self._answer(request.id, due)
        except TimeoutError:
            self.close()
            raise UnavailableError(f"no answer from the vault within {self._deadline:g} s") from None
        except ConnectionError:
            self.close()
            raise LostError("the vault closed the connection") from None
        if isinstance(answer, wire.Failure):
            close_all(came)
            raise from_code(answer.code, answer.message)
        return answer, came

    def more_fds(self, id: int, count: int) -> tuple[int, ...]:  # noqa: A002 - the wire's own word
        """Return the next ``count`` descriptors of the region that is being opened."""
        due = time.monotonic() + self._deadline
        got: list[int] = []
        try:
            while len(got) < count:
                answer, fds = self._answer(id, due)
                got += fds
                if not isinstance(answer, wire.MoreChunks) or not fds:
                    raise LostError(f"the vault sent {type(answer).__name__} instead of descriptors")
        except BaseException as error:
            close_all(got)
            self.close()
            if isinstance(error, TimeoutError | ConnectionError):
                raise LostError("the vault did not send all descriptors") from None
            raise
        return tuple(got)

    def listen(self, timeout: float | None) -> bool:
        """Wait for one notice and handle it; return False if none came in time. Raise LostError."""
        if self._socket.fileno() < 0:
            raise LostError("closed before")
        due = None if timeout is None else time.monotonic() + timeout
        try:
            answer, fds = self._receive(due)
        except TimeoutError:
            return False
        except ConnectionError:
            self.close()
            raise LostError("the vault closed the connection") from None
        if isinstance(answer, wire.Notice):
            self._on_notice(answer, fds)
        else:
            close_all(fds)
        return True

    def _answer(self, id: int, due: float) -> Answered:  # noqa: A002 - the wire's own word
        while True:
            message, fds = self._receive(due)
            if isinstance(message, wire.Notice):
                self._on_notice(message, fds)
            elif message.id == id or isinstance(message, wire.Failure):
                return message, fds
            else:
                close_all(fds)

    def _receive(self, due: float | None) -> tuple[wire.Answer | wire.Notice, tuple[int, ...]]:
        self._limit(socket.SO_RCVTIMEO, due)
        try:
            packet = seqpacket.receive(self._socket, wire.MAX_PACKET, max_fds=KERNEL_MAX_FDS)
        except BlockingIOError:
            raise TimeoutError from None
        if packet.end or not packet.data:
            raise ConnectionResetError
        try:
            if packet.truncated:
                raise UnavailableError("this process has no room for the descriptors of the region (RLIMIT_NOFILE)")
            return wire.decode_reply(packet.data), packet.fds
        except msgspec.DecodeError as error:
            close_all(packet.fds)
            self.close()
            raise UnavailableError(f"not a message of version {wire.VERSION}: {error}") from None
        except BaseException:
            close_all(packet.fds)
            self.close()
            raise

    def _send(self, data: bytes, fds: tuple[int, ...], due: float) -> None:
        while True:
            self._limit(socket.SO_SNDTIMEO, due)
            try:
                seqpacket.send(self._socket, data, fds=fds)
            except BlockingIOError:
                raise TimeoutError from None
            except BrokenPipeError:
                # The vault's last messages can still be read, and then the end of the connection.
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                # The kernel counts a user's descriptors in flight over all processes; reading them lowers the count.
                if time.monotonic() + _RETRY > due:
                    raise TimeoutError from None
                time.sleep(_RETRY)
            else:
                return

    def _limit(self, option: int, due: float | None) -> None:
        # Not settimeout(): it makes the socket non-blocking, and connect(2) would not wait.
        left = 0.0 if due is None else due - time.monotonic()
        if due is not None and left <= 0:
            raise TimeoutError
        # Zero means without limit.
        value = _TIMEVAL.pack(0, 0) if due is None else _timeval(left)
        self._socket.setsockopt(socket.SOL_SOCKET, option, value)


def _connect(path: str, due: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        reason = f"{path}: the vault does not accept"
        while True:
            left = due - time.monotonic()
            try:
                if left > 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(left))
                    sock.connect(path)
                    return sock
            except BlockingIOError:
                continue
            except (FileNotFoundError, ConnectionRefusedError) as error:
                reason = f"no vault at {path}: {error.strerror}"
                if path == DEFAULT_SOCKET:
                    reason += f" ({SOCKET_VARIABLE} or {RUN_DIRECTORY_VARIABLE} names another place)"
            except OSError as error:
                raise UnavailableError(f"{path}: {error.strerror}") from None
            if time.monotonic() + _RETRY > due:
                raise UnavailableError(reason)
            time.sleep(_RETRY)
    except BaseException:
        sock.close()
        raise


def _timeval(seconds: float) -> bytes:
    # At least a microsecond: zero would mean no limit.
    return _TIMEVAL.pack(int(seconds), max(int(seconds % 1 * 1e6), 1))


def unexpected(answer: wire.Answer, fds: Sequence[int]) -> UnavailableError:
    """Close ``fds`` and return the error for an answer of the wrong type."""
    close_all(fds)
    return UnavailableError(f"the vault answered with {type(answer).__name__}")
