"""The network clients of a run: what each got, to the last byte, or why not."""

import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from fault_injection.takeover import model
from fault_injection.takeover.schedule import Asks

_READ: Final = 1 << 16
_READ_HALTING: Final = 3000
_HALT: Final = 0.001
_SMALL: Final = 8192
"""Bytes of a slow reader's receive buffer."""
_TICK: Final = 0.002


class UnfaithfulError(Exception):
    """A client did not get what it would have got without faults."""


class _Client:
    def __init__(self, asks: Asks, begun: float) -> None:
        self.asks = asks
        self.at = begun + asks.after
        self.sock: socket.socket | None = None
        self.rest = b""
        self.got = bytearray()
        self.over = False

    def connect(self, address: tuple[str, int]) -> socket.socket:
        sock = self.sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        if self.asks.halting:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        sock.connect(address)
        line = self.asks.request.line()
        cut = len(line) // 2 if self.asks.halting else len(line)
        sock.sendall(line[:cut])
        self.rest = line[cut:]
        sock.setblocking(False)
        return sock

    def read(self) -> None:
        assert self.sock is not None
        if self.rest:
            self.sock.sendall(self.rest)
            self.rest = b""
        piece = self.sock.recv(_READ_HALTING if self.asks.halting else _READ)
        self.got += piece
        self.over = not piece


def ask(address: tuple[str, int], clients: Sequence[Asks], deadline: float, meanwhile: Callable[[], None]) -> None:
    """Have all of them ask; return when each has got all it was to get, and nothing else.

    ``meanwhile`` is called often. UnfaithfulError, also after ``deadline`` seconds, which nothing comes near.
    """
    begun = time.monotonic()
    waiting = [_Client(asks, begun) for asks in clients]
    everybody = list(waiting)
    with selectors.DefaultSelector() as selector, _closed(everybody):
        while waiting or selector.get_map():
            now = time.monotonic()
            if now - begun > deadline:
                raise UnfaithfulError(f"not within {deadline:g} s: {_progress(everybody)}")
            for client in [each for each in waiting if each.at <= now]:
                waiting.remove(client)
                selector.register(client.connect(address), selectors.EVENT_READ, client)
            meanwhile()
            _read(selector, now)
    for client in everybody:
        wanted = model.stream(client.asks.request)
        if client.got != wanted:
            raise UnfaithfulError(f"{client.asks}: {_difference(bytes(client.got), wanted)}")


def _read(selector: selectors.BaseSelector, now: float) -> None:
    for client in [key.data for key in selector.get_map().values()]:
        if client.rest and now > client.at + _HALT:
            client.sock.sendall(client.rest)
            client.rest = b""
    for key, _ in selector.select(_TICK):
        client = key.data
        try:
            client.read()
        except OSError as error:
            raise UnfaithfulError(f"{client.asks}: {error}, after {len(client.got)} bytes") from None
        if client.over:
            selector.unregister(key.fileobj)
            client.sock.close()
    if any(key.data.asks.halting for key in selector.get_map().values()):
        time.sleep(_HALT)


@contextmanager
def _closed(clients: Sequence[_Client]) -> Iterator[None]:
    try:
        yield
    finally:
        for client in clients:
            if client.sock is not None:
                client.sock.close()


def _progress(clients: Sequence[_Client]) -> str:
    return "; ".join(
        f"{client.asks}: {len(client.got)} of {len(model.stream(client.asks.request))} bytes"
        for client in clients
        if not client.over
    )


def _difference(got: bytes, wanted: bytes) -> str:
    at = next((index for index, (one, other) in enumerate(zip(got, wanted, strict=False)) if one != other), None)
    if at is None:
        at = min(len(got), len(wanted))
    return f"got {len(got)} bytes of {len(wanted)}; they differ from byte {at}: {got[at : at + 40]!r}"
