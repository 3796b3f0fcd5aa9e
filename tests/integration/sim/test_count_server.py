"""The service of docs/guides/standby.md, under a real guard: its processes are killed, and its clients see a pause."""

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator

import pytest

from tests.harness.free_port import free_port
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.running import Running
from tests.integration.sim.test_takeover import FailoverPair

pytestmark = pytest.mark.slow(seconds=20, reason="kills a service twice")

SESSION = "count-server"


@pytest.fixture
def pair() -> Iterator[FailoverPair]:
    with FailoverPair() as running:
        running.start()
        yield running
        running.ctl("vault", "release", str(os.getuid()), SESSION)


class Service:
    """`mpsguard run --standby 1 --listen ... -- python -m examples.count_server`, and its two processes."""

    def __init__(self, pair: FailoverPair) -> None:
        self._pair = pair
        self._port = free_port()
        options = ("--config", str(pair.config), "--standby", "1", "--listen", f"127.0.0.1:{self._port}")
        command = [sys.executable, "-m", "examples.count_server"]
        self.running = Running(pair.root, options, command, {**os.environ, "PYTHONPATH": str(REPOSITORY)})

    def pids(self) -> tuple[int, int]:
        """The processes that serve and wait, once the second one is ready."""

        def look() -> tuple[int, int] | None:
            done = self._pair.ctl("vault", "show", str(os.getuid()), SESSION)
            found = {
                role: int(pid)
                for pid, role in re.findall(r"^\s*(\d+)\s.*(writer|standby, ready)", done.stdout, re.MULTILINE)
            }
            return (found["writer"], found["standby, ready"]) if len(found) == 2 else None

        return wait_for("a writer and a ready standby", look)

    def ask(self, number: int) -> socket.socket:
        """A connection on which so many lines were asked for."""
        sock = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE)
        sock.sendall(b"%04d" % number)
        return sock

    def close(self) -> None:
        self.running.process.terminate()
        self.running.wait()
        self.running.close()


def lines(sock: socket.socket, count: int) -> bytes:
    """That many lines of an answer, or fewer if it ends before; a connection that is reset is an error."""
    text = b""
    while text.count(b"\n") < count and (data := sock.recv(1)):
        text += data
    return text


def test_its_clients_see_a_pause(pair: FailoverPair) -> None:
    service = Service(pair)
    try:
        active, standby = service.pids()
        with service.ask(120) as first, service.ask(200) as second:
            text = lines(first, 10)
            os.kill(active, signal.SIGKILL)
            text += lines(first, 50)
            promoted, _ = service.pids()
            assert promoted == standby
            os.kill(promoted, signal.SIGKILL)
            expected = [b"".join(b"%d\n" % number for number in range(1, last + 1)) for last in (120, 200)]
            assert [text + lines(first, 1000), lines(second, 1000)] == expected
    finally:
        service.close()


def test_a_client_that_reads_late_gets_all_of_a_whole_answer(pair: FailoverPair) -> None:
    """The connection is closed long before the client has read it: what was written must not be dropped with it."""
    service = Service(pair)
    try:
        active, _ = service.pids()
        with service.ask(30) as late, service.ask(60) as other:
            lines(other, 5)
            os.kill(active, signal.SIGKILL)
            lines(other, 1000)
            assert lines(late, 1000) == b"".join(b"%d\n" % number for number in range(1, 31))
    finally:
        service.close()


def test_a_peer_that_sends_nonsense_is_closed(pair: FailoverPair) -> None:
    service = Service(pair)
    try:
        service.pids()
        with service.ask(3) as good, socket.create_connection(good.getpeername(), timeout=PATIENCE) as bad:
            bad.sendall(b"what")
            # Nothing of it was read.
            with pytest.raises(ConnectionResetError):
                bad.recv(1)
            assert lines(good, 1000) == b"1\n2\n3\n"
    finally:
        service.close()
