"""HTTP of the guard, over a real socket: what requests cost the event loop."""

import asyncio
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from mpsguard.guard.config import parse
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.daemon.http_service import EventLoop, HttpService, Page, socket_path

_TAKES = 0.02
"""Seconds of the event loop: ten times what a scrape with 512 clients takes."""
_SCRAPES = 30


class _NoSite:
    def answer(self, path: str, query: str, loop: EventLoop, *, trusted: bool) -> Page | None:
        raise NotImplementedError


def scrape(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return client.recv(64)


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a path that leaves room for those of sockets, which have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="mgh-") as path:
        yield Path(path)


def test_scrapes_take_a_small_part_of_the_event_loop(short: Path) -> None:
    """Any user may ask, as often as it likes: no share of a user's counts here."""
    began: list[float] = []

    def refresh() -> None:
        began.append(time.monotonic())
        while time.monotonic() < began[-1] + _TAKES:
            pass

    async def main() -> float:
        settings = parse(f'[guard]\nrun_directory = "{short}"\nmetrics_address = "off"\n'.encode(), "a test").guard
        service = HttpService(settings, CollectorRegistry(), _NoSite(), refresh, events=EventStream())
        service.open()
        try:
            since = time.monotonic()
            for _ in range(_SCRAPES):
                assert b"200 OK" in await asyncio.to_thread(scrape, socket_path(str(short)))
            return time.monotonic() - since
        finally:
            service.close()

    took = asyncio.run(main())
    assert 1 <= len(began) <= 1 + took / _TAKES / 10
