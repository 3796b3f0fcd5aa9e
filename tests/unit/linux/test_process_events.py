"""The kernel's process events connector, with real processes where the kernel lets us listen."""

import errno
import os
import select
import socket
import sys
from collections.abc import Iterator

import pytest

from mpsguard.linux.processes import process_events
from tests.unit.linux.doomed import Doomed, open_files


@pytest.fixture
def events() -> Iterator[process_events.ProcessEvents]:
    try:
        opened = process_events.ProcessEvents()
    except OSError as error:
        pytest.skip(f"process events: {error}")
    yield opened
    opened.close()


def test_the_kernel_sends_only_what_is_watched(events: process_events.ProcessEvents) -> None:
    doomed, stranger = Doomed(lambda: os._exit(7)), Doomed(lambda: os._exit(8))
    # Enough for two groups of jumps in the filter; the pid that counts comes last. These pids are above pid_max.
    for pid in range(1 << 22, (1 << 22) + process_events._FARTHEST + 9):
        events.watch(pid)
    events.watch(doomed.pid)
    stranger.end()
    doomed.end()
    statuses = [stranger.reap(), doomed.reap()]
    readable = select.poll()
    readable.register(events._socket, select.POLLIN)
    assert readable.poll(10_000)
    message = events._socket.recv(4096)
    assert process_events._EVENT.unpack_from(message, process_events._HEADERS.size)[3] == doomed.pid
    with pytest.raises(BlockingIOError):
        events._socket.recv(4096)
    assert [os.waitstatus_to_exitcode(status) for status in statuses] == [8, 7]
    doomed.handle.close()
    stranger.handle.close()


def test_an_exec_is_reported_and_no_exit_and_no_stranger() -> None:
    try:
        execs = process_events.ProcessEvents(process_events.ProcessEventKind.EXEC)
    except OSError as error:
        pytest.skip(f"process events: {error}")
    true = [sys.executable, "-S", "-c", ""]
    watched, stranger = Doomed(lambda: os.execv(true[0], true)), Doomed(lambda: os.execv(true[0], true))
    execs.watch(watched.pid)
    stranger.end()
    assert execs.happened().pids == ()
    watched.end()
    assert execs.happened() == ((watched.pid,), True)
    assert execs.happened() == ((), True)
    for doomed in (watched, stranger):
        doomed.reap()
        doomed.handle.close()
    execs.close()


def test_lost_events_may_be_anybodys(events: process_events.ProcessEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_socket", Overrun(events._socket))
    events.watch(1 << 22)
    assert events.happened() == ((), False)


def test_more_than_a_filter_holds_are_not_watched(events: process_events.ProcessEvents) -> None:
    for pid in range(1 << 22, (1 << 22) + process_events.MAX_WATCHED):
        events.watch(pid)
    assert not events.watch(1)
    assert events.take(1) is None
    events.forget(1 << 22)
    assert events.watch(1)
    assert 1 in events._told


class Overrun:
    """A connector socket that has lost events, and has none."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self._errors = [errno.ENOBUFS, errno.EAGAIN]

    def recvfrom(self, _: int) -> tuple[bytes, object]:
        number = self._errors.pop(0)
        raise OSError(number, os.strerror(number))

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def test_a_lost_event_is_not_waited_for(events: process_events.ProcessEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_socket", Overrun(events._socket))
    monkeypatch.setattr(events, "_readable", lambda _: pytest.fail("waits"))
    events.watch(1 << 22)
    assert events.take(1 << 22) is None


def test_a_kernel_that_does_not_answer_is_told_from_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container's namespaces the kernel takes the request and says nothing."""
    before = open_files()
    monkeypatch.setattr(process_events, "_LISTEN", process_events._IGNORE)
    monkeypatch.setattr(process_events, "_NONE", 1)
    monkeypatch.setattr(process_events, "_ANSWER_WITHIN", 0.01)
    with pytest.raises(OSError, match=r"does not answer|not permitted|refused"):
        process_events.ProcessEvents()
    assert open_files() == before
