"""The one-time secret of `image pull --listen`: each end proves to the other that it has it, and sends nothing of it.

An address says nothing of the process behind it: on the loopback interface, any user of the machine can connect to a
listener, or listen in its place.
"""

import hmac
import os
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from mpsguard.images.store.errors import StreamError

VARIABLE: Final = "MPSGUARD_IMAGE_SECRET"
_NONCE: Final = 32
_PROOF: Final = 32
_MOST: Final = 64
"""Connections of peers that have proven nothing yet; one more ends the oldest."""
_LONGEST: Final = 1024
"""Bytes of a file with a secret."""


def new() -> str:
    """Return a secret that cannot be guessed, not even from proofs of it."""
    return secrets.token_urlsafe(24)


def told(file: Path | None) -> str | None:
    """Return the secret that the user was told: out of ``file``, the environment, or as it is typed in.

    Never an argument: every user sees those. None if there is none, and no terminal to ask at.

    Raises:
        StreamError: the file cannot be read.
    """
    if file is not None:
        try:
            with file.open("rb") as opened:
                found = opened.read(_LONGEST)
        except OSError as error:
            raise StreamError(f"{file}: {error.strerror or error}") from None
        return found.decode(errors="replace").strip()
    given = os.environ.get(VARIABLE)
    if given:
        return given.strip()
    if not sys.stdin.isatty():
        return None
    text: str = click.prompt("secret that `image pull --listen` printed", hide_input=True, err=True)
    return text.strip()


def first_with(secret: str, listener: socket.socket, within: float) -> socket.socket:
    """Accept connections, and return the first of a peer that has the secret, blocking; the others are closed.

    Raises:
        TimeoutError: no such peer came within so many seconds.
        OSError: as accept(2).
    """
    due = time.monotonic() + within
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector, ExitStack() as owned:
        selector.register(listener, selectors.EVENT_READ)
        unknown: dict[socket.socket, tuple[bytes, bytearray]] = {}
        owned.callback(_close, unknown)
        while (left := due - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is listener:
                    if len(unknown) >= _MOST:
                        _leave(selector, unknown, next(iter(unknown)))
                    _greet(selector, unknown, listener)
                elif sock not in unknown:
                    # It gave way to one that came in this very turn.
                    continue
                elif (proven := _heard(secret, *unknown[sock], sock)) is None:
                    continue
                elif proven:
                    del unknown[sock]
                    return sock
                else:
                    _leave(selector, unknown, sock)
    raise TimeoutError


def prove(secret: str, sock: socket.socket) -> None:
    """Prove to the listener that this process has the secret, and have it prove the same.

    Raises:
        StreamError: it has another one, or none.
        OSError: as its socket's calls.
    """
    theirs = _exactly(sock, _NONCE)
    ours = secrets.token_bytes(_NONCE)
    sock.sendall(ours + _proof(secret, b"push", theirs, ours))
    if not hmac.compare_digest(_exactly(sock, _PROOF), _proof(secret, b"pull", theirs, ours)):
        raise StreamError("what listens there does not have the secret: nothing was sent to it")


def _greet(
    selector: selectors.BaseSelector,
    unknown: dict[socket.socket, tuple[bytes, bytearray]],
    listener: socket.socket,
) -> None:
    try:
        sock, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return
    sock.setblocking(False)
    nonce = secrets.token_bytes(_NONCE)
    try:
        # A new connection has room for it.
        sock.send(nonce)
    except OSError:
        sock.close()
        return
    unknown[sock] = nonce, bytearray()
    selector.register(sock, selectors.EVENT_READ)


def _leave(
    selector: selectors.BaseSelector, unknown: dict[socket.socket, tuple[bytes, bytearray]], sock: socket.socket
) -> None:
    selector.unregister(sock)
    del unknown[sock]
    sock.close()


def _close(socks: Iterable[socket.socket]) -> None:
    for each in socks:
        each.close()


def _heard(secret: str, nonce: bytes, said: bytearray, sock: socket.socket) -> bool | None:
    """Return whether a peer has proven that it has the secret; None if it has not said all yet."""
    try:
        more = sock.recv(_NONCE + _PROOF - len(said))
        if not more:
            return False
        said += more
        if len(said) < _NONCE + _PROOF:
            return None
        theirs = bytes(said[:_NONCE])
        if not hmac.compare_digest(bytes(said[_NONCE:]), _proof(secret, b"push", nonce, theirs)):
            return False
        sock.send(_proof(secret, b"pull", nonce, theirs))
    except BlockingIOError:
        return None
    except OSError:
        return False
    sock.setblocking(True)
    return True


def _proof(secret: str, end: bytes, listener: bytes, other: bytes) -> bytes:
    return hmac.digest(secret.encode(), end + listener + other, "sha256")


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise StreamError("what listens there refused this process: it has another secret, or is no `image pull`")
        data += more
    return bytes(data)
