"""Start times of processes, read by child processes of this one."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import process_tree, procfs
from mpsguard.linux.processes.stat_reader import StatReader
from tests.unit.linux.stat_reading import run

UID = os.getuid()


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_process_is_held_with_its_start_time_and_where_its_program_begins(at_once: bool) -> None:
    async def scenario(stats: StatReader) -> None:
        if at_once:
            stats.start()
        with await stats.hold(process.pid, UID) as handle, await stats.hold(os.getpid()) as own:
            assert handle.key == procfs.process_key(process.pid)
            assert own.key == procfs.process_key(os.getpid())
            assert handle.image != own.image
            with await stats.hold(process.pid) as again:
                assert again.image == handle.image
            assert await stats.is_running(handle.key)
            assert not await stats.is_running(ProcessKey(process.pid, handle.key.start_ticks + 1))
            process.kill()
            process.wait()
            assert not await stats.is_running(handle.key)
            with pytest.raises(ProcessLookupError):
                await stats.key(process.pid)
            with pytest.raises(ProcessLookupError):
                await stats.hold(process.pid, UID, os.dup(handle.fileno()))

    with sleeping() as process:
        run(scenario)


def test_a_zombie_is_not_held() -> None:
    async def scenario(stats: StatReader) -> None:
        with pytest.raises(ProcessLookupError):
            await stats.hold(process.pid)

    with sleeping() as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        run(scenario)


def test_many_at_once_are_each_told_of_their_own() -> None:
    async def scenario(stats: StatReader) -> None:
        pids = [os.getpid(), process.pid, 1, 1 << 22] * 100
        of_users = await asyncio.gather(*(stats.stats(pids, uid) for uid in range(20)))
        for lines in of_users:
            assert [line and int(line.split()[0]) for line in lines] == [os.getpid(), process.pid, 1, b""] * 100
        held = await asyncio.gather(*(stats.hold(process.pid, number % 5) for number in range(400)))
        assert {handle.key for handle in held} == {procfs.process_key(process.pid)}
        for handle in held:
            handle.close()
        own = procfs.process_key(os.getpid())
        assert await stats.pid_namespaces([(own, 0), (ProcessKey(1 << 22, 1), 0)]) == {
            own: process_tree.pid_namespace()
        }

    with sleeping() as process:
        run(scenario)


def test_a_child_that_was_killed_is_replaced_and_a_caller_that_gave_up_leaves_nothing() -> None:
    async def scenario(stats: StatReader) -> None:
        stats.start()
        for child in process_tree.descendants(os.getpid()):
            if child.pid != process.pid:
                os.kill(child.pid, signal.SIGKILL)
        for _ in range(2):
            # One that it was about to ask: nothing is known then, and the next one asks another.
            await stats.stats([process.pid], UID)
        given_up = [asyncio.create_task(stats.hold(process.pid, UID)) for _ in range(10)]
        await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        await asyncio.wait(given_up)
        assert await stats.key(process.pid) == procfs.process_key(process.pid)

    with sleeping() as process:
        run(scenario)


@pytest.mark.parametrize("passes", range(6))
def test_one_that_is_closed_says_that_nothing_could_be_read_and_leaves_no_child(passes: int) -> None:
    """Also if that is when a thread starts one."""

    async def scenario(stats: StatReader) -> None:
        asked = asyncio.create_task(stats.stats([os.getpid()], UID))
        for _ in range(passes):
            await asyncio.sleep(0)
        stats.close()
        stats.close()
        assert await asked == [None]
        with pytest.raises(TimeoutError):
            await stats.key(os.getpid())

    run(scenario)
