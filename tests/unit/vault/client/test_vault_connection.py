"""What the vault says before it closes a connection is heard, whenever that happens."""

import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from mpsguard.vault.client.vault_connection import Connection, LostError
from mpsguard.vault.wire import wire
from mpsguard.vault.wire.errors import Code, QuotaError, UnavailableError
from mpsguard.vault.wire.region import LeaseRole
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import PATIENCE

REFUSED = wire.encode(wire.Failure(0, Code.QUOTA, "too many"))
TURNED_AWAY = pytest.mark.parametrize(
    ("last_words", "heard"), [(REFUSED, QuotaError), (None, LostError)], ids=["told", "untold"]
)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "vault"))
        listening.listen()
        listening.settimeout(PATIENCE)
        yield listening


def ignore(_: wire.Notice, fds: tuple[int, ...]) -> None:
    assert not fds


def hello(connection: Connection) -> wire.Hello:
    return wire.Hello(connection.next_id(), wire.VERSION, "s", LeaseRole.WRITER, 1)


@TURNED_AWAY
def test_a_connection_turned_away_before_it_asks_gets_the_reason(
    listener: socket.socket, last_words: bytes | None, heard: type[Exception]
) -> None:
    with closing(Connection(listener.getsockname(), PATIENCE, PATIENCE, ignore)) as connection:
        with listener.accept()[0] as accepted:
            if last_words:
                accepted.send(last_words)
        with pytest.raises(heard):
            connection.ask(hello(connection))


@TURNED_AWAY
def test_a_connection_turned_away_unread_gets_the_reason(
    listener: socket.socket, last_words: bytes | None, heard: type[Exception]
) -> None:
    closed = threading.Event()

    def turn_away() -> None:
        with listener.accept()[0] as accepted:
            # It has asked; and it is not waiting in recvmsg(2) when the connection ends.
            assert select.select([accepted], [], [], PATIENCE)[0]
            accepted.send(wire.encode(wire.Released("r")))
            if last_words:
                accepted.send(last_words)
        closed.set()

    def busy(_: wire.Notice, fds: tuple[int, ...]) -> None:
        assert not fds
        assert closed.wait(PATIENCE)

    thread = threading.Thread(target=turn_away)
    thread.start()
    before = open_descriptors()
    try:
        with (
            closing(Connection(listener.getsockname(), PATIENCE, PATIENCE, busy)) as connection,
            pytest.raises(heard),
        ):
            connection.ask(hello(connection))
    finally:
        thread.join(PATIENCE)
    assert opened_since(before) == []


def test_a_late_refusal_of_an_interrupted_request_answers_no_other(listener: socket.socket) -> None:
    interrupted = threading.Event()

    def vault() -> None:
        with listener.accept()[0] as accepted:
            assert select.select([accepted], [], [], PATIENCE)[0]
            accepted.recv(wire.MAX_PACKET)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert interrupted.wait(PATIENCE)
            with suppress(BrokenPipeError):
                accepted.send(wire.encode(wire.Failure(1, Code.QUOTA, "too late")))
            # Until the client leaves.
            with suppress(ConnectionResetError):
                while accepted.recv(wire.MAX_PACKET):
                    accepted.send(wire.encode(wire.Done(2)))

    thread = threading.Thread(target=vault)
    thread.start()
    try:
        with closing(Connection(listener.getsockname(), PATIENCE, PATIENCE, ignore)) as connection:
            with pytest.raises(KeyboardInterrupt):
                connection.ask(hello(connection))
            interrupted.set()
            with pytest.raises(LostError):
                connection.ask(wire.Ready(connection.next_id()))
    finally:
        interrupted.set()
        thread.join(PATIENCE)


@pytest.mark.parametrize("default", [True, False])
def test_a_vault_that_is_not_at_its_default_place_is_told_where_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: bool
) -> None:
    path = str(tmp_path / "missing")
    if default:
        monkeypatch.setattr("mpsguard.vault.client.vault_connection.DEFAULT_SOCKET", path)
    with pytest.raises(UnavailableError, match=f"no vault at {path}") as caught:
        Connection(path, 0.2, PATIENCE, ignore)
    assert ("MPSGUARD_RUN_DIRECTORY" in str(caught.value)) is default
