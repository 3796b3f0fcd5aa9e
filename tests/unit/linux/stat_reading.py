"""A `StatReader` for a test."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from mpsguard.linux.processes import process_tree
from mpsguard.linux.processes.stat_reader import StatReader
from tests.harness.open_descriptors import open_descriptors, opened_since


def run(scenario: Callable[[StatReader], Coroutine[Any, Any, None]]) -> None:
    """Do what a test does with one. Nothing is left of it: neither a descriptor nor a child."""

    async def main() -> None:
        stats = StatReader()
        try:
            await scenario(stats)
        finally:
            stats.close()

    before = open_descriptors()
    children = process_tree.descendants(os.getpid())
    asyncio.run(asyncio.wait_for(main(), 30))
    # One that was started meanwhile is ended by the thread that started it. The thread ends, too: as long as it has not
    # begun to start its child, it has no descriptor, and would have some when the next test looks.
    deadline = time.monotonic() + 20
    while True:
        left = set(process_tree.descendants(os.getpid())) - set(children)
        threads = [each for each in threading.enumerate() if each.name.startswith("stat-reader")]
        if not left and not threads and not opened_since(before):
            return
        assert time.monotonic() < deadline, (left, threads)
        time.sleep(0.01)
