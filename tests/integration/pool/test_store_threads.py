"""Threads that the operating system refuses: a limit of processes that is reached, and raised again."""

import subprocess
import sys

import pytest

from tests.harness.waiting import PATIENCE

PROGRAM = """
import asyncio, os, resource
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.store_threads import OF_A_STORE, StoreThreads

os.setgid(65534)
os.setuid(65534)


async def main():
    threads = StoreThreads("look")
    limits = resource.getrlimit(resource.RLIMIT_NPROC)
    for _ in range(2):
        calls = []
        resource.setrlimit(resource.RLIMIT_NPROC, (0, limits[1]))
        for _ in range(OF_A_STORE + 1):
            try:
                await asyncio.wait_for(threads.run("/store", lambda: calls.append("refused")), 5)
            except PoolError as error:
                calls.append("PoolError")
        resource.setrlimit(resource.RLIMIT_NPROC, limits)
        await asyncio.wait_for(threads.run("/store", lambda: calls.append("done")), 5)
        print(calls)


asyncio.run(main())
"""


@pytest.mark.root
def test_a_call_that_gets_no_thread_is_refused_and_takes_no_place() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    # The second time there is a thread, which does all.
    assert done.stdout.splitlines() == [str(["PoolError"] * 9 + ["done"]), str(["refused"] * 9 + ["done"])], done.stderr
