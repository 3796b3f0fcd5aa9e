"""`tcp_progress.written` against real connections: what the kernel counts is what was written, by any process."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mpsguard.vault.client import tcp_progress
from tests.harness.waiting import PATIENCE, wait_for

HOSTS = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}

FailoverPair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=HOSTS, ids=lambda family: family.name)
def pair(request: pytest.FixtureRequest) -> Iterator[FailoverPair]:
    """Yield the accepted end and the connecting end of a connection."""
    family: socket.AddressFamily = request.param
    with socket.socket(family) as listener:
        try:
            listener.bind((HOSTS[family], 0))
        except OSError as error:
            pytest.skip(f"no loopback of {family.name} here: {error.strerror}")
        listener.listen()
        connecting = socket.create_connection(listener.getsockname()[:2])
        accepted, _ = listener.accept()
    with connecting, accepted:
        yield accepted, connecting


def fill(sock: socket.socket) -> int:
    """Write until nothing more is taken."""
    sock.setblocking(False)
    count = 0
    try:
        while True:
            count += sock.send(b"x" * 65536)
    except BlockingIOError:
        return count


def read(sock: socket.socket, count: int) -> None:
    while count:
        count -= len(sock.recv(min(count, 1 << 20)))


def test_both_ends_begin_with_nothing(pair: FailoverPair) -> None:
    accepted, connecting = pair
    assert tcp_progress.written(accepted) == 0
    assert tcp_progress.written(connecting, accepted=False) == 0


def test_every_byte_counts_at_once_and_goes_on_counting_when_it_has_arrived(pair: FailoverPair) -> None:
    accepted, connecting = pair
    for count in (1, 7, 100_000):
        before = tcp_progress.written(accepted), tcp_progress.written(connecting, accepted=False)
        accepted.sendall(b"x" * count)
        assert tcp_progress.written(accepted) == before[0] + count
        connecting.sendall(b"y" * count)
        assert tcp_progress.written(connecting, accepted=False) == before[1] + count
        read(connecting, count)
        read(accepted, count)
        assert tcp_progress.written(accepted) == before[0] + count
        assert tcp_progress.written(connecting, accepted=False) == before[1] + count


def test_a_peer_that_does_not_read_changes_nothing(pair: FailoverPair) -> None:
    accepted, connecting = pair
    count = fill(accepted)
    assert tcp_progress.written(accepted) == count
    read(connecting, count // 2)
    count += fill(accepted)
    assert tcp_progress.written(accepted) == count


def test_it_is_right_at_any_moment_while_acknowledgements_come(pair: FailoverPair) -> None:
    accepted, connecting = pair
    source = """
import socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
while sock.recv(1 << 16): pass
"""
    with subprocess.Popen(
        [sys.executable, "-c", source, str(connecting.fileno())], pass_fds=[connecting.fileno()]
    ) as reader:
        try:
            count = 0
            for _ in range(300):
                count += accepted.send(b"x" * 30_000)
                assert [tcp_progress.written(accepted) for _ in range(5)] == [count] * 5
        finally:
            reader.kill()


def test_the_end_of_this_side_is_no_byte(pair: FailoverPair) -> None:
    accepted, connecting = pair
    accepted.sendall(b"x" * 1000)
    accepted.shutdown(socket.SHUT_WR)
    assert tcp_progress.written(accepted) == 1000
    assert len(connecting.recv(1000)) == 1000
    assert connecting.recv(1) == b""
    assert tcp_progress.written(accepted) == 1000


def test_the_end_of_the_other_side_changes_nothing(pair: FailoverPair) -> None:
    accepted, connecting = pair
    connecting.shutdown(socket.SHUT_WR)
    assert accepted.recv(1) == b""
    accepted.sendall(b"x" * 1000)
    assert tcp_progress.written(accepted) == 1000


def test_a_connection_that_both_sides_have_ended_is_over(pair: FailoverPair) -> None:
    accepted, connecting = pair
    accepted.shutdown(socket.SHUT_WR)
    assert connecting.recv(1) == b""
    connecting.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        wait_for("the last acknowledgement", lambda: tcp_progress.written(connecting, accepted=False) < 0)


def test_a_connection_that_is_over_has_no_count(pair: FailoverPair) -> None:
    accepted, connecting = pair
    accepted.sendall(b"x")
    connecting.close()  # with a byte unread: the peer is told by a reset
    with pytest.raises(ConnectionResetError):
        wait_for("the reset", lambda: tcp_progress.written(accepted) < 0)


def test_what_is_no_connection_is_refused() -> None:
    with socket.socket() as never, pytest.raises(OSError, match=r"over"):
        tcp_progress.written(never)
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(OSError, match=r"."):
        tcp_progress.written(listening)
    local, other = socket.socketpair()
    with local, other, pytest.raises(OSError, match=r"."):
        tcp_progress.written(local)


WRITER = """
import os, socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
piece = bytes(range(251)) * 4000
os.write(1, b"!")
while True:
    sock.sendall(piece)
"""


@pytest.mark.parametrize("reads", [0, 3_000_000])
def test_of_a_write_that_was_killed_the_part_that_went_out_counts(pair: FailoverPair, reads: int) -> None:
    """The writer blocks in the middle of a write, since its peer reads no more than ``reads`` bytes."""
    accepted, connecting = pair
    arguments = [sys.executable, "-c", WRITER, str(accepted.fileno())]
    with subprocess.Popen(arguments, pass_fds=[accepted.fileno()], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.read(1) == b"!"
        got = bytearray()
        while len(got) < reads:
            got += connecting.recv(reads - len(got))
        last = -1

        def blocks() -> bool:
            nonlocal last
            before, last = last, tcp_progress.written(accepted)
            return before == last > 0 and sleeping(writer.pid)

        wait_for("the writer to block", blocks)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(PATIENCE)
    count = tcp_progress.written(accepted)
    # The process that goes on writes what lies behind the count, and the peer sees one stream.
    piece = bytes(range(251)) * 4000
    whole = piece * (count // len(piece) + 2)
    accepted.setblocking(True)
    rest = whole[count : count + 10_000]
    connecting.settimeout(PATIENCE)
    while len(got) < count:
        got += connecting.recv(count - len(got))
    accepted.sendall(rest)
    while len(got) < count + len(rest):
        got += connecting.recv(count + len(rest) - len(got))
    assert bytes(got) == whole[: count + len(rest)]
    assert tcp_progress.written(accepted) == count + len(rest)


def sleeping(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "S"
