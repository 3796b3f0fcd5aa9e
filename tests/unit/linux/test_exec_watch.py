"""Processes that execute another program: told of once, by the kernel or by looking."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import exec_watch
from mpsguard.linux.processes.exec_watch import ExecWatch
from mpsguard.linux.processes.process_events import ProcessEvents
from mpsguard.linux.processes.stat_reader import StatReader
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until

AGAIN = """
import os, sys
print(flush=True)
sys.stdin.readline()
os.execv(sys.executable, [sys.executable, '-S', '-c', sys.argv[1], ''])
"""


def refused() -> ProcessEvents:
    raise PermissionError(1, "Operation not permitted")


class Deaf(ProcessEvents):
    """It hears nothing, and says so: the kernel has no room for what it would tell."""

    def watch(self, _: int) -> bool:
        return False


def deaf() -> ProcessEvents:
    try:
        return Deaf()
    except OSError as error:
        pytest.skip(f"process events: {error}")


def kernel() -> ProcessEvents:
    try:
        return exec_watch.exec_events()
    except OSError as error:
        pytest.skip(f"process events: {error}")


@pytest.mark.parametrize("events", [kernel, refused, deaf])
def test_an_exec_is_reported_once_and_the_same_program_again_is_one_too(events: Callable[[], ProcessEvents]) -> None:
    told: list[ProcessKey] = []

    async def main() -> None:
        stats = StatReader()
        watch = ExecWatch(told.append, stats, events)
        with (
            program() as process,
            program() as other,
            await stats.hold(process.pid) as handle,
            await stats.hold(other.pid) as quiet,
        ):
            watch.watch(handle, os.getuid())
            watch.watch(quiet, os.getuid())
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            await until(lambda: told)
            assert told == [handle.key]
            watch.forget(quiet.key)
        watch.close()
        stats.close()

    before = open_descriptors()
    asyncio.run(main())
    assert opened_since(before) == []


@pytest.mark.parametrize("events", [kernel, refused, deaf])
def test_an_exec_between_holding_a_process_and_watching_it_is_reported(events: Callable[[], ProcessEvents]) -> None:
    told: list[ProcessKey] = []

    async def main() -> None:
        stats = StatReader()
        watch = ExecWatch(told.append, stats, events)
        with program() as process, await stats.hold(process.pid) as handle:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            # It says so once more as another program.
            assert await asyncio.to_thread(process.stdout.readline) == b"\n"
            watch.watch(handle, os.getuid())
            await until(lambda: told)
            assert told == [handle.key]
        watch.close()
        stats.close()

    asyncio.run(main())


@contextmanager
def program() -> Iterator[subprocess.Popen[bytes]]:
    """One that has been executed: it has said so."""
    command = [sys.executable, "-S", "-c", AGAIN, AGAIN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None
            started.stdout.readline()
            yield started
        finally:
            started.kill()
