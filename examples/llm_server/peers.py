"""Connections, one request each: which bytes have come, and which are still to be written.

Nothing is taken out of a connection before the request is published, and nothing is written that was not: what the
kernel has of it and what the state says are enough for the next process.
"""

import select
import selectors
import socket
import time
from contextlib import suppress
from typing import Final

from examples.llm_server import http
from mpsguard.client import tcp_progress

REQUEST_DEADLINE: Final = 30.0
"""Seconds in which a request must have come."""
LINGER: Final = 5.0
"""Seconds in which the peer of an answer that is written must have closed; then we do."""


class Peer:
    """One connection; owns the socket. ``tag`` is its name with the supervisor, and its request's id."""

    def __init__(self, sock: socket.socket, tag: int) -> None:
        self.sock = sock
        self.tag = tag
        self.come: http.Come | None = None
        """Its request, when it is whole."""
        self.finished = False
        """Whether all of the answer has been given to `write`."""
        self.gone = False
        """Whether the connection is broken, or ended too early."""
        self.dropped = False
        """Whether the supervisor was told to let go of it."""
        self._pending = b""
        self._left = 0
        self._due = time.monotonic() + REQUEST_DEADLINE
        self._shut = False
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """For selectors."""
        return self.sock.fileno()

    @property
    def events(self) -> int:
        """What is waited for."""
        if self._pending:
            return selectors.EVENT_WRITE
        reading = self._shut or (self.come is None and not self.finished)
        return selectors.EVENT_READ if reading else 0

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do with it."""
        return self.gone or (self._shut and self.sock.fileno() < 0)

    @property
    def written_out(self) -> bool:
        """Whether the kernel has all of the answer."""
        return self.finished and not self._pending

    def resume(self, answer: bytes) -> None:
        """Go on with an answer of which the process before has written the beginning."""
        done = self.written()
        if not self.gone:
            self.write(answer[done:])

    def written(self) -> int:
        """Bytes that were written to the connection, by whatever process."""
        try:
            return tcp_progress.written(self.sock)
        except OSError:
            self.gone = True
            return 0

    def look(self, *, vocabulary: int, length: int) -> None:
        """Look for a whole request; leaves it where it is. A wrong one is answered."""
        try:
            data = self.sock.recv(http.MOST_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        found = http.parse(data, vocabulary=vocabulary, length=length) if data else None
        if isinstance(found, http.Come):
            self.come = found
            self._left = found.size
        elif isinstance(found, http.Refused):
            self.finished = True
            # A process before may have answered it already.
            self.resume(found.answer)
        elif not data or self._ended():
            self.gone = True
        else:
            # Readable again when more has come, not because of what lies there.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(data) + 1)

    def take_request(self) -> None:
        """Take what was looked at out of the socket: it is published."""
        while self._left > 0:
            try:
                data = self.sock.recv(self._left)
            except OSError:
                return
            if not data:
                return
            self._left -= len(data)

    def write(self, data: bytes) -> None:
        """Add to the answer, and give the kernel what it takes."""
        self._pending += data
        self.go_on()

    def go_on(self) -> None:
        """Write what is pending; after the end, wait for the peer's."""
        try:
            while self._pending:
                self._pending = self._pending[self.sock.send(self._pending) :]
            while self._shut and self.sock.recv(65536):
                pass
        except BlockingIOError:
            return
        except OSError:
            self.gone = True
            return
        if self._shut:
            self.sock.close()

    def finish(self) -> None:
        """All is written: say so to the peer, and wait for it to close; a reset could take the answer's end away."""
        self._shut = True
        self._due = time.monotonic() + LINGER
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.gone = True
            return
        self.go_on()

    def expire(self, now: float) -> None:
        """Give up on a peer that keeps us waiting."""
        if self.events == selectors.EVENT_READ and now > self._due:
            self.gone = True

    def _ended(self) -> bool:
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        return bool(poll.poll(0))
