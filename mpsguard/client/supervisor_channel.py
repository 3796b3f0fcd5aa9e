"""This process' end of the desk between it and its supervisor: one question at a time, each with a deadline."""

import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

import msgspec

from mpsguard.linux import seqpacket
from mpsguard.linux.fd_closer import close_all
from mpsguard.linux.io_fence import FencePass
from mpsguard.linux.seqpacket import KERNEL_MAX_FDS
from mpsguard.supervisor import wire

DEADLINE: Final = 10.0
"""Seconds for an answer. Before it gives connections away, the supervisor stops a predecessor that still lives."""

_MOST_DIGITS: Final = 9
_TIMEVAL: Final = struct.Struct("ll")


class DeskClosedError(Exception):
    """The supervisor has ended, or does not answer: nobody keeps anything any more."""


class NotKeptError(Exception):
    """The supervisor does not keep a connection: too many, or a tag is in use, or this is not the active process."""


class SupervisorChannel:
    """Owns the descriptors. Safe for use by several threads, not by a child made by fork."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._last_id = 0
        self._passage: FencePass | None = None

    @classmethod
    def from_environment(cls) -> Self | None:
        """The desk that MPSGUARD_DESK names, close-on-exec from now on; None if there is none, or it is no desk.

        The variable is taken out of the environment: no child shall mistake it for its own.
        """
        number = os.environ.pop(wire.VARIABLE, "")
        # Longer than any descriptor's number: int() and the kernel have errors of their own for that.
        if not number.isdecimal() or len(number) > _MOST_DIGITS:
            return None
        try:
            sock = socket.socket(fileno=int(number))
        except OSError:
            return None
        if not _is_one(sock):
            # Inherited by name alone: the number is another descriptor's here, and not ours.
            sock.detach()
            return None
        sock.set_inheritable(False)
        return cls(sock)

    @property
    def open(self) -> bool:
        """Whether there is a supervisor, as far as is known: it is this process' desk, and has not failed."""
        return self._socket.fileno() >= 0 and os.getpid() == self._pid

    def close(self) -> None:
        """Give everything back; safe to call twice. Nobody may be in a passage, or come."""
        self._socket.close()
        if self._passage is not None:
            self._passage.close()

    def tell(self, message: wire.Request, fds: Sequence[int] = ()) -> None:
        """Say something that is not answered; DeskClosedError."""
        with self._lock:
            self._send(message, fds, time.monotonic() + DEADLINE)

    @property
    def passage(self) -> FencePass | None:
        """This process' way through the gate in front of its connections; None if nobody could shut it.

        It stays when the supervisor has ended: what was shut by then is shut.
        """
        return self._passage if os.getpid() == self._pid else None

    def open_passage(self) -> None:
        """Ask for a gate, unless there is one, or nobody who would shut it."""
        with suppress(NotKeptError, DeskClosedError):
            if self._passage is None:
                self._take_passage(self.ask(wire.Fence(0), ()))

    def _take_passage(self, fds: Sequence[int]) -> None:
        with self._lock:
            if self._passage is None and len(fds) == 1:
                self._passage = FencePass(fds[0])
            else:
                close_all(fds)

    def ask(self, request: wire.Keep | wire.Accept | wire.Fence, fds: Sequence[int]) -> tuple[int, ...]:
        """Ask something; the descriptors that came with the answer are the caller's. NotKeptError, DeskClosedError."""
        with self._lock:
            due = time.monotonic() + DEADLINE
            self._last_id += 1
            self._send(msgspec.structs.replace(request, id=self._last_id), fds, due)
            return self._receive(due)[1]

    def take(self) -> dict[int, int]:
        """Copies of all that is kept, descriptors by tag, the caller's; NotKeptError, DeskClosedError."""
        taken: dict[int, int] = {}
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
                        raise self._broken(f"it said {type(answer).__name__} with {len(fds)} descriptors")
                    taken.update(zip(answer.tags, fds, strict=True))
                    more = answer.more
            except BaseException:
                close_all(taken.values())
                raise
        return taken

    def _send(self, message: wire.Request, fds: Sequence[int], due: float) -> None:
        self._limit(socket.SO_SNDTIMEO, due)
        try:
            seqpacket.send(self._socket, wire.encode(message), fds=tuple(fds))
        except (BlockingIOError, ConnectionError):
            raise self._broken("it does not listen") from None

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
                raise self._broken(f"it speaks another language: {error}") from None
            except DeskClosedError:
                close_all(packet.fds)
                raise
            if answer.id == self._last_id and not isinstance(answer, wire.Refused):
                return answer, packet.fds
            close_all(packet.fds)
            if isinstance(answer, wire.Refused) and answer.id == self._last_id:
                raise NotKeptError(answer.reason)

    def _limit(self, option: int, due: float) -> None:
        if not self.open:
            raise DeskClosedError("there is no supervisor")
        left = max(due - time.monotonic(), 1e-6)
        self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(left), max(int(left % 1 * 1e6), 1)))

    def _broken(self, why: str) -> DeskClosedError:
        # A late answer would be taken for another's.
        self._socket.close()
        return DeskClosedError(f"the supervisor: {why}")


def _is_one(sock: socket.socket) -> bool:
    """Whether it could be a desk, which is one of a pair: a connection to a vault has a peer with a name."""
    if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        return False
    try:
        return not sock.getpeername()
    except OSError:
        return False
