"""Connections to the HTTP address that stall cost no thread each, and keep neither a probe nor a scraper out."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.guard.metrics.server import MOST_AT_ONCE
from tests.harness.free_port import free_port
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded

pytestmark = pytest.mark.slow(seconds=20, reason="attacks a real guard")

IDLE = 100
OF_ASYNCIO = min(32, (os.cpu_count() or 1) + 4)
"""Threads that asyncio may have started meanwhile for other work of the guard."""
SAYS = {
    "nothing": b"",
    "half a request": b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Half: ",
    "requests, and reads no answer": b"GET /metrics HTTP/1.1\r\n\r\n",
}


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def guarded(port: int) -> Iterator[Guarded]:
    with Guarded() as running:
        text = running.config.read_text().replace('"off"', f'"127.0.0.1:{port}"')
        running.config.write_text(text)
        running.start()
        wait_for("the address", lambda: running.events("http_served"))
        yield running


@pytest.mark.parametrize("what", SAYS)
def test_stalled_connections_are_bounded_and_others_are_served(guarded: Guarded, port: int, what: str) -> None:
    pid = guarded.guard.pid
    assert _answers(port, "/metrics")
    before = threads(pid)
    held = [_stalled(port, SAYS[what]) for _ in range(IDLE)]
    assert threads(pid) <= before + MOST_AT_ONCE + OF_ASYNCIO
    for path in ("/livez", "/readyz", "/metrics", "/"):
        # More than are served at once: each of them ends one that stalls.
        for _ in range(3):
            wait_for(path, lambda path=path: _answers(port, path))  # type: ignore[misc]
        held.append(_stalled(port, SAYS[what]))
    for sock in held:
        sock.close()


def _stalled(port: int, says: bytes) -> socket.socket:
    sock = socket.socket()
    # Small, so that an answer does not fit into it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.settimeout(30)
    sock.connect(("127.0.0.1", port))
    with contextlib.suppress(ConnectionError):
        sock.sendall(says)
    return sock


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status == 200 and bool(answer.read())
    except OSError:
        return False
