"""A connection to the vault: one question at a time, each with a deadline, and notices as they come."""

import errno
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from mpsguard.linux import seqpacket
from mpsguard.linux.fd_closer import close_all
from mpsguard.linux.seqpacket import KERNEL_MAX_FDS
from mpsguard.vault import wire
from mpsguard.vault.errors import UnavailableError, from_code

_TIMEVAL: Final = struct.Struct("ll")
_RETRY: Final = 0.01
"""Seconds between two tries while nobody listens, or while too many descriptors are in flight."""


class LostError(Exception):
    """The connection broke; whether the last request was carried out is not known."""


Answered = tuple[wire.Answer, tuple[int, ...]]


class Connection:
    """Owns the socket. Not for use by two threads at once."""

    def __init__(
        self,
        path: str,
        patience: float,
        deadline: float,
        notice: Callable[[wire.Notice, tuple[int, ...]], None],
    ) -> None:
        """Connect, waiting for somebody to listen there; UnavailableError after ``patience`` seconds.

        ``deadline``: seconds for the answer to each request. ``notice`` is called with what the vault says
        unasked; the descriptors are its to close.
        """
        self._deadline = deadline
        self._notice = notice
        self._last_id = 0
        self._socket = _connect(path, time.monotonic() + patience)

    def close(self) -> None:
        """Give the socket back; safe to call twice."""
        self._socket.close()

    def next_id(self) -> int:
        """For the next request."""
        self._last_id += 1
        return self._last_id

    def ask(self, request: wire.Request, fds: Sequence[int] = (), *, due: float | None = None) -> Answered:
        """Send a request, and its descriptors once the vault says to; the answer with the descriptors that came.

        ``due`` (time.monotonic) may be sooner than the connection's own deadline.

        Raises a VaultError if the vault refuses, LostError if the connection breaks, UnavailableError if there is no
        answer in time (and then closes, since a late answer would be taken for another's).
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
        """The next ``count`` descriptors of the region that is being opened."""
        due = time.monotonic() + self._deadline
        got: list[int] = []
        try:
            while len(got) < count:
                answer, fds = self._answer(id, due)
                got += fds
                if not isinstance(answer, wire.MoreChunks) or not fds:
                    raise LostError(f"the vault said {type(answer).__name__} where descriptors were due")
        except BaseException as error:
            close_all(got)
            self.close()
            if isinstance(error, TimeoutError | ConnectionError):
                raise LostError("the vault did not send all descriptors") from None
            raise
        return tuple(got)

    def listen(self, timeout: float | None) -> bool:
        """Wait for one notice and deal with it; False if none came in time. LostError."""
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
            self._notice(answer, fds)
        else:
            close_all(fds)
        return True

    def _answer(self, id: int, due: float) -> Answered:  # noqa: A002 - the wire's own word
        while True:
            message, fds = self._receive(due)
            if isinstance(message, wire.Notice):
                self._notice(message, fds)
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
            raise UnavailableError(f"not the language of version {wire.VERSION}: {error}") from None
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
                # What the vault said before it closed is still to be read, and then the end.
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                # The user's descriptors in flight are counted over all processes; they come down as they are read.
                if time.monotonic() + _RETRY > due:
                    raise TimeoutError from None
                time.sleep(_RETRY)
            else:
                return

    def _limit(self, option: int, due: float | None) -> None:
        # Not settimeout: it makes the socket non-blocking, and then connect(2) would not wait either.
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
            except OSError as error:
                raise UnavailableError(f"{path}: {error.strerror}") from None
            if time.monotonic() + _RETRY > due:
                raise UnavailableError(reason)
            time.sleep(_RETRY)
    except BaseException:
        sock.close()
        raise


def _timeval(seconds: float) -> bytes:
    # At least a microsecond: nothing at all would mean no limit.
    return _TIMEVAL.pack(int(seconds), max(int(seconds % 1 * 1e6), 1))


def unexpected(answer: wire.Answer, fds: Sequence[int]) -> UnavailableError:
    """The error for an answer that belongs to another request; its descriptors are closed."""
    close_all(fds)
    return UnavailableError(f"the vault answered with {type(answer).__name__}")
