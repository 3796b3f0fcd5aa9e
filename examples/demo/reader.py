"""A network client of the simulated service: requests one answer, and checks what it receives."""

import socket
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from fault_injection.takeover import model
from fault_injection.takeover.model import Request
from tests.bench.core.errors import SuiteError

_DEADLINE: Final = 30.0
"""Seconds without a byte after which a reader gives up."""
_PIECE: Final = 4096


class Reader:
    """One connection and its answer, read piece by piece."""

    def __init__(self, port: int, request: Request) -> None:
        """Connect and send the request; raise OSError."""
        self._wanted = model.stream(request)
        self._request = request
        self._got = bytearray()
        self._sock = socket.create_connection(("127.0.0.1", port), _DEADLINE)
        self._sock.sendall(request.line())

    def read(self, tokens: int) -> None:
        """Read until ``tokens`` have arrived; raise SuiteError if the connection ends before, or TimeoutError."""
        while len(self._got) < tokens * self._request.width:
            if not self._more():
                raise SuiteError(f"the connection ended: {self.summary()}")

    def read_all(self) -> None:
        """Read until the connection ends or breaks; raise TimeoutError."""
        with suppress(ConnectionError):
            while self._more():
                pass

    @property
    def tokens(self) -> int:
        """Number of tokens received."""
        return len(self._got) // self._request.width

    @property
    def faithful(self) -> bool:
        """Whether everything received is a prefix of the answer: nothing lost, changed or repeated."""
        return self._wanted.startswith(self._got)

    @property
    def whole(self) -> bool:
        """Whether exactly the answer was received."""
        return self._got == self._wanted

    def summary(self) -> str:
        """Return how many tokens were received, and whether they are right."""
        end = "none twice" if self.whole else "cut off" if self.faithful else "not the right ones"
        return f"{self.tokens} of {self._request.tokens} tokens, {end}"

    def _more(self) -> bool:
        piece = self._sock.recv(_PIECE)
        self._got += piece
        return bool(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()
