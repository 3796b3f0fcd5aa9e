"""Messages to a busy service manager, with this test in its place: the loop goes on, and all arrive in order."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.linux.systemd.notify_queue import NotifyQueue
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until

ROOM_ENDS = 1000
"""Messages before which a socket's queue is full: the kernel's limit is 10 or some hundreds."""


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


def test_a_busy_manager_holds_up_nothing_and_gets_all_in_order(manager: socket.socket) -> None:
    async def main() -> None:
        queue = NotifyQueue()
        before = open_descriptors()
        began = time.monotonic()
        for number in range(ROOM_ENDS):
            fd = os.memfd_create(str(number))
            # Copied where it has to wait: its owner closes it.
            assert queue.notify(f"N={number}", fds=(fd,))
            os.close(fd)
        assert time.monotonic() - began < 10
        assert not await queue.flushed(0.0)
        got: list[str] = []

        def read() -> None:
            data, fds, _, _ = socket.recv_fds(manager, 64, 1)
            got.append(data.decode())
            assert os.readlink(f"/proc/self/fd/{fds[0]}").startswith(f"/memfd:{data.decode()[2:]} ")
            os.close(fds[0])

        asyncio.get_running_loop().add_reader(manager.fileno(), read)
        assert await queue.flushed(30)
        await until(lambda: len(got) == ROOM_ENDS)
        asyncio.get_running_loop().remove_reader(manager.fileno())
        assert got == [f"N={number}" for number in range(ROOM_ENDS)]
        assert opened_since(before) == []

    asyncio.run(main())


def test_what_waits_is_closed_with_the_queue_and_when_the_manager_ends(manager: socket.socket) -> None:
    async def main() -> None:
        before = open_descriptors()
        for ends in (False, True):
            queue = NotifyQueue()
            fd = os.memfd_create("x")
            while await queue.flushed(0.0):
                assert queue.notify("X", fds=(fd,))
            # Ours, its copy, and a socket.
            assert len(opened_since(before)) == 3
            os.close(fd)
            if ends:
                manager.close()
                assert await queue.flushed(30)
                assert not queue.notify("X")
            else:
                queue.close()
            assert opened_since(before) == []

    asyncio.run(main())


def test_without_a_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not NotifyQueue().notify("READY=1")
