"""/proc of strangers, read for an event loop: reads that nothing waits for any more keep their user's places."""

import array
import asyncio
import fcntl
import os
import signal
import termios
import threading
from contextlib import suppress

import pytest

from mpsguard.linux.processes import process_reader
from mpsguard.linux.processes.process_reader import UNKNOWN, LoopReader, ProcessReader, Told
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import wait_for

STRANGER, OTHER = 60001, 60002
DEADLINE = 30.0
OF_A_USER = 2
"""Reads of one user at a time; docs/concepts/security.md names it."""


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("process-reader")}


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> LoopReader:
    """One with time: a child's start takes longer than a read, and how long depends on the machine."""
    monkeypatch.setattr(process_reader, "_PATIENCE", DEADLINE)
    made = LoopReader()
    made.reader._deadline = DEADLINE
    return made


async def give_up(reading: asyncio.Task[Told]) -> None:
    await asyncio.sleep(0)
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading


def test_reads_that_are_given_up_take_no_more_threads_than_their_user_has_places(reader: LoopReader) -> None:
    """The children are stopped: each read lasts until its deadline."""

    async def scenario() -> None:
        before = reading_threads()
        reader.start()
        children = [child._process.pid for child in reader.reader._idle]
        assert len(children) == OF_A_USER
        try:
            for child in children:
                os.kill(child, signal.SIGSTOP)
            for _ in range(200):
                await give_up(asyncio.create_task(reader.tell(os.getpid(), STRANGER, ())))
            assert len(reading_threads() - before) <= OF_A_USER
            # Two children of its own: those of the stranger are at its reads.
            assert (await reader.tell(os.getpid(), OTHER, ())).command
        finally:
            for child in children:
                os.kill(child, signal.SIGCONT)
            reader.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_one_read_too_many_of_a_user_that_waits_is_unknown_at_once(reader: LoopReader) -> None:
    async def scenario() -> None:
        try:
            readings = [asyncio.create_task(reader.tell(os.getpid(), STRANGER, ())) for _ in range(200)]
            found = await asyncio.gather(*readings)
            assert all(told.command for told in found[: OF_A_USER + 8])
            assert UNKNOWN in found
            assert (await reader.tell(os.getpid(), STRANGER, ())).command
        finally:
            reader.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def unread(fd: int) -> int:
    """Bytes that were sent and not read (SIOCOUTQ)."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.TIOCOUTQ, count)
    return count[0]


def test_an_interrupted_read_answers_no_other() -> None:
    before = open_descriptors()
    reader = ProcessReader(DEADLINE)
    reader.start(1)
    (child,) = reader._idle
    pid, fd = child._process.pid, child.socket.fileno()
    os.kill(pid, signal.SIGSTOP)

    def interrupt() -> None:
        wait_for("the question was sent", lambda: unread(fd) > 0)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        reader.read(os.getpid(), os.geteuid(), {"comm": 100})
    thread.join(DEADLINE)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    (name,) = reader.read(os.getpid(), os.geteuid(), {"comm": 100})
    with open("/proc/self/comm", "rb") as comm:
        assert name == comm.read()
    reader.close()
    assert opened_since(before) == []
