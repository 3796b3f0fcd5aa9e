"""A child of the event loop has ended when its wait is over, however that came."""

import asyncio
import sys

import pytest

from mpsguard.linux.processes.child import end_of, wait_or_kill
from mpsguard.linux.processes.helper_process import HelperProcess


async def started(program: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program)


def test_the_status_of_one_that_ends_in_time() -> None:
    async def body() -> int:
        return await wait_or_kill(await started("raise SystemExit(7)"), 30.0)

    assert asyncio.run(body()) == 7


def test_one_that_does_not_end_in_time_is_killed() -> None:
    async def body() -> int | None:
        child = await started("import time; time.sleep(600)")
        with pytest.raises(TimeoutError):
            await wait_or_kill(child, 0.01)
        return child.returncode

    assert asyncio.run(body()) == -9


def test_one_whose_wait_is_cancelled_is_killed() -> None:
    async def body() -> int | None:
        child = await started("import time; time.sleep(600)")
        waiting = asyncio.create_task(wait_or_kill(child, 600.0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return child.returncode

    assert asyncio.run(body()) == -9


def helper(program: str) -> HelperProcess:
    return HelperProcess([sys.executable, "-I", "-c", program], {})


def test_the_status_of_a_helper_that_ends_in_time() -> None:
    async def body() -> int:
        return await end_of(helper("raise SystemExit(7)"), 30.0)

    assert asyncio.run(body()) == 7


def test_a_helper_that_does_not_end_in_time_is_killed() -> None:
    async def body() -> int | None:
        child = helper("import time; time.sleep(600)")
        with pytest.raises(TimeoutError):
            await end_of(child, 0.01)
        return child.poll()

    assert asyncio.run(body()) == -9


def test_a_helper_whose_wait_is_cancelled_is_killed() -> None:
    async def body() -> int | None:
        child = helper("import time; time.sleep(600)")
        waiting = asyncio.create_task(end_of(child, 600.0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return child.poll()

    assert asyncio.run(body()) == -9
