"""Connections to the metrics that say nothing cost no thread each, and keep no scraper out."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest

from mpsguard.metrics.server import MOST_AT_ONCE
from tests.integration.guarded import Guarded, wait_for

pytestmark = pytest.mark.slow(seconds=20, reason="attacks a real guard")

IDLE = 100


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_idle_connections_are_bounded_and_a_scraper_is_served() -> None:
    port = free_port()
    with Guarded() as guarded:
        text = guarded.config.read_text().replace("[guard]", f'[guard]\nmetrics_address = "127.0.0.1:{port}"')
        guarded.config.write_text(text)
        pid = guarded.start()
        before = threads(pid)
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(IDLE)]
        # Those beyond the bound are closed: nothing is left to be read.
        wait_for("the others' end", lambda: sum(_closed(sock) for sock in held) >= IDLE - MOST_AT_ONCE)
        assert threads(pid) <= before + MOST_AT_ONCE

        def scraped() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    return b"mpsguard_" in answer.read()
            except OSError:
                return False

        # Each of those that say nothing has its deadline.
        wait_for("a scrape", scraped)
        for sock in held:
            sock.close()


def _closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
