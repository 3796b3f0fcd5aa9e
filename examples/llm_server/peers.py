"""Connections with one request each: reads the request, and writes the answer as far as the kernel accepts it.

A request stays in the socket until it is published, and only published tokens are written. So the kernel's queue and
the published state are all that the successor needs.
"""

import select
import selectors
import socket
import time
from contextlib import suppress
from typing import Final

from examples.llm_server import http
from mpsguard.vault.client import tcp_progress

REQUEST_DEADLINE: Final = 30.0
"""Seconds for a request to arrive."""
LINGER: Final = 5.0
"""Seconds for the peer to close after the answer was written; then the server closes."""


class Peer:
    """One connection; owns the socket. ``tag`` names it for the supervisor, and is its request's id."""

    def __init__(self, sock: socket.socket, tag: int) -> None:
        self.sock = sock
        self.tag = tag
        self.received: http.Received | None = None
        """Its request, once it is whole."""
        self.finished = False
        """Whether the whole answer was passed to `write`."""
        self.gone = False
        """Whether the connection is broken, or ended too early."""
        self.dropped = False
        """Whether the supervisor was told to drop it."""
        self._pending = b""
        self._left = 0
        self._due = time.monotonic() + REQUEST_DEADLINE
        self._shut = False
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self.sock.fileno()

    @property
    def events(self) -> int:
        """The events to wait for."""
        if self._pending:
            return selectors.EVENT_WRITE
        reading = self._shut or (self.received is None and not self.finished)
        return selectors.EVENT_READ if reading else 0

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do with it."""
        return self.gone or (self._shut and self.sock.fileno() < 0)

    @property
    def written_out(self) -> bool:
        """Whether the kernel has accepted the whole answer."""
        return self.finished and not self._pending

    def resume(self, answer: bytes) -> None:
        """Continue an answer of which the previous process has written the beginning."""
        done = self.written()
        if not self.gone:
            self.write(answer[done:])

    def written(self) -> int:
        """Return the number of bytes written to the connection by all processes."""
        try:
            return tcp_progress.written(self.sock)
        except OSError:
            self.gone = True
            return 0

    def look(self, *, vocabulary: int, length: int) -> None:
        """Look for a whole request without reading it from the socket. An invalid one is answered."""
        try:
            data = self.sock.recv(http.MOST_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        found = http.parse(data, vocabulary=vocabulary, length=length) if data else None
        if isinstance(found, http.Received):
            self.received = found
            self._left = found.size
        elif isinstance(found, http.Refused):
            self.finished = True
            # The previous process may have answered it already.
            self.resume(found.answer)
        elif not data or self._ended():
            self.gone = True
        else:
            # Readable again only when more bytes have come.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(data) + 1)

    def take_request(self) -> None:
        """Read the request from the socket, after it was published."""
        while self._left > 0:
            try:
                data = self.sock.recv(self._left)
            except OSError:
                return
            if not data:
                return
            self._left -= len(data)

    def write(self, data: bytes) -> None:
        """Append to the answer, and write what the kernel accepts."""
        self._pending += data
        self.flush()

    def flush(self) -> None:
        """Write pending bytes; after the end, wait for the peer to close."""
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
        """Shut down the sending side and wait for the peer to close.

        Closing at once could cause a reset, which can destroy the end of the answer.
        """
        self._shut = True
        self._due = time.monotonic() + LINGER
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.gone = True
            return
        self.flush()

    def expire(self, now: float) -> None:
        """Give up on a peer after its deadline."""
        if self.events == selectors.EVENT_READ and now > self._due:
            self.gone = True

    def _ended(self) -> bool:
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        return bool(poll.poll(0))
