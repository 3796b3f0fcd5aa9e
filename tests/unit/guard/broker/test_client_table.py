"""The client table: which process a connection is of, and handles of clients for others."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from mpsguard.guard.broker import client_table
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.model import Client
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.exec_watch import ExecWatch
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_events import ProcessEvents
from mpsguard.linux.processes.stat_reader import StatReader
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until

UID = os.getuid()
EXECUTES = "import os, sys; print(flush=True); sys.stdin.readline(); os.execv('/bin/cat', ['cat'])"


@contextmanager
def program() -> Iterator[subprocess.Popen[bytes]]:
    """One that has been executed: it has said so."""
    command = [sys.executable, "-S", "-c", EXECUTES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


class Audience:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.came: list[ProcessKey] = []
        self.ended: list[ProcessKey] = []

    def client_came(self, client: Client, _: ProcessHandle) -> None:
        self.came.append(client.process)

    def client_came_again(self, client: Client, _: ProcessHandle) -> None:
        self.came.append(client.process)

    def client_ended(self, client: Client, _: ProcessHandle) -> None:
        self.ended.append(client.process)


def run(
    scenario: Callable[[ClientTable, Audience, StatReader, subprocess.Popen[bytes]], Coroutine[Any, Any, None]],
) -> None:
    async def main() -> None:
        stats, audience = StatReader(), Audience()
        table = ClientTable(audience, stats)
        with program() as process:
            try:
                await scenario(table, audience, stats, process)
            finally:
                process.kill()
                table.close()
                stats.close()

    before = open_descriptors()
    asyncio.run(asyncio.wait_for(main(), 30))
    assert opened_since(before) == []


async def hold(table: ClientTable, process: subprocess.Popen[bytes]) -> ProcessHandle:
    return await table.hold(os.pidfd_open(process.pid), process.pid, UID)


def client(handle: ProcessHandle) -> Client:
    return Client(handle.key, UID, UID, "", "", None, None, "d", "l", 0.0)


def test_the_start_time_of_a_client_is_read_once() -> None:
    async def scenario(
        table: ClientTable, audience: Audience, stats: StatReader, process: subprocess.Popen[bytes]
    ) -> None:
        key = procfs.process_key(process.pid)
        handle = await hold(table, process)
        assert handle.key == key
        table.add(client(handle), handle)
        # From here on nothing can be read.
        stats.close()
        with await hold(table, process) as again:
            assert again.key == key
        with pytest.raises(TimeoutError):
            await table.hold(os.pidfd_open(os.getpid()), os.getpid(), UID)
        for known in (table.handle(key), table.with_pid(process.pid)):
            assert known is not None
            with known:
                assert known.key == key
                assert known.alive()
        process.kill()
        process.wait()
        assert table.handle(key) is None
        assert table.with_pid(process.pid) is None
        await until(lambda: audience.ended)
        assert audience.ended == [key]

    run(scenario)


def refused() -> ProcessEvents:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("told", [True, False])
def test_a_process_that_executes_a_program_is_another_client_each_time_and_can_be_held(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``told``: whether the kernel may tell of it; else the table looks."""
    if not told:
        monkeypatch.setattr(client_table, "ExecWatch", partial(ExecWatch, events=refused))

    async def scenario(table: ClientTable, audience: Audience, _: StatReader, process: subprocess.Popen[bytes]) -> None:
        first = await hold(table, process)
        table.add(client(first), first)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        await until(lambda: audience.ended)
        assert table.with_pid(process.pid) is None
        second = await hold(table, process)
        assert second.key == ProcessKey(process.pid, audience.ended[0].start_ticks, execs=1)
        table.add(client(second), second)
        for known in (table.handle(second.key), table.with_pid(process.pid)):
            assert known is not None
            with known:
                assert known.key == second.key
        with program() as other:
            third = await hold(table, other)
            table.add(client(third), third)
            assert other.stdin is not None
            other.stdin.write(b"\n")
            other.stdin.flush()
            await until(lambda: third.key in audience.ended)
            other.kill()
        # What is looked at has been looked at again: it still runs the same program.
        assert second.key not in audience.ended
        process.kill()
        await until(lambda: second.key in audience.ended)
        assert sorted(audience.ended) == sorted(audience.came)

    run(scenario)
