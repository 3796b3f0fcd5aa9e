"""What the vault says before it closes a connection is heard, whenever that happens."""

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mpsguard.client.vault_connection import Connection, LostError
from mpsguard.vault import wire
from mpsguard.vault.errors import Code, QuotaError, UnavailableError
from mpsguard.vault.region import LeaseRole

DEADLINE = 30.0
REFUSED = wire.encode(wire.Failure(0, Code.QUOTA, "too many"))
TURNED_AWAY = pytest.mark.parametrize(
    ("last_words", "heard"), [(REFUSED, QuotaError), (None, LostError)], ids=["told", "untold"]
)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "vault"))
        listening.listen()
        listening.settimeout(DEADLINE)
        yield listening


def ignore(_: wire.Notice, fds: tuple[int, ...]) -> None:
    assert not fds


def hello(connection: Connection) -> wire.Hello:
    return wire.Hello(connection.next_id(), wire.VERSION, "s", LeaseRole.WRITER, 1)


@TURNED_AWAY
def test_a_connection_turned_away_before_it_asks_gets_the_reason(
    listener: socket.socket, last_words: bytes | None, heard: type[Exception]
) -> None:
    with closing(Connection(listener.getsockname(), DEADLINE, DEADLINE, ignore)) as connection:
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
            assert select.select([accepted], [], [], DEADLINE)[0]
            accepted.send(wire.encode(wire.Released("r")))
            if last_words:
                accepted.send(last_words)
        closed.set()

    def busy(_: wire.Notice, fds: tuple[int, ...]) -> None:
        assert not fds
        assert closed.wait(DEADLINE)

    thread = threading.Thread(target=turn_away)
    thread.start()
    before = len(os.listdir("/proc/self/fd"))
    try:
        with (
            closing(Connection(listener.getsockname(), DEADLINE, DEADLINE, busy)) as connection,
            pytest.raises(heard),
        ):
            connection.ask(hello(connection))
    finally:
        thread.join(DEADLINE)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("default", [True, False])
def test_a_vault_that_is_not_at_its_default_place_is_told_where_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: bool
) -> None:
    path = str(tmp_path / "missing")
    if default:
        monkeypatch.setattr("mpsguard.client.vault_connection.DEFAULT_SOCKET", path)
    with pytest.raises(UnavailableError, match=f"no vault at {path}") as caught:
        Connection(path, 0.2, DEADLINE, ignore)
    assert ("MPSGUARD_RUN_DIRECTORY" in str(caught.value)) is default
