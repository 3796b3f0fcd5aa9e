"""The simulation's clients see every way in which a stream can be wrong: else its thousand runs would show nothing."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fault_injection.takeover import clients, model, schedule
from fault_injection.takeover.clients import UnfaithfulError
from fault_injection.takeover.model import Request
from fault_injection.takeover.schedule import Asks

REQUEST = Request("a", 10, 40)
RIGHT = model.stream(REQUEST)


@contextmanager
def answering(answer: bytes, *, resets: bool = False) -> Iterator[tuple[str, int]]:
    """A server that answers one client so, and resets the connection then, or ends it."""

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            seen = b""
            while not resets and b"\n" not in seen:
                seen += sock.recv(100)
            sock.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            thread.join()


def ask(address: tuple[str, int]) -> None:
    clients.ask(address, [Asks(REQUEST, 0.0, False)], 10.0, lambda: None)


def test_what_is_right_is_right() -> None:
    with answering(RIGHT) as address:
        ask(address)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        RIGHT[:-1],
        RIGHT[:40] + RIGHT[80:],
        RIGHT[:80] + RIGHT[40:],
        RIGHT + RIGHT[-1:],
        RIGHT[:40] + model.SKIPPED,
        RIGHT[:7] + b"x" + RIGHT[8:],
    ],
    ids=["nothing", "a byte less", "a token lost", "a token doubled", "a byte more", "skipped", "another byte"],
)
def test_what_is_wrong_is_seen(wrong: bytes) -> None:
    with answering(wrong) as address, pytest.raises(UnfaithfulError):
        ask(address)


def test_a_connection_that_breaks_is_seen() -> None:
    """Its request is never read, so that its end is a reset."""
    with answering(RIGHT[:40], resets=True) as address, pytest.raises(UnfaithfulError):
        ask(address)


def test_an_answer_that_does_not_come_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(UnfaithfulError):
        clients.ask(listener.getsockname(), [Asks(REQUEST, 0.0, False)], 0.05, lambda: None)


def test_a_stream_depends_on_every_entry_of_the_cache() -> None:
    tokens = [RIGHT[at : at + 40] for at in range(0, len(RIGHT), 40)]
    assert len(set(tokens)) == REQUEST.tokens
    assert not set(tokens) & {model.stream(Request("b", 10, 40))[at : at + 40] for at in range(0, 400, 40)}


def test_schedules_are_made_from_their_number_alone() -> None:
    assert [schedule.make(1, number) for number in range(50)] == [schedule.make(1, number) for number in range(50)]
    assert len({schedule.make(1, number) for number in range(50)}) > 40
    assert schedule.make(1, 0) != schedule.make(2, 0)
