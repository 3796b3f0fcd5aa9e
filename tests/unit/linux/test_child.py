"""A child of the event loop has ended when its wait is over, however that came."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mpsguard.linux.processes.child import python_path, wait_or_kill


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


@pytest.mark.parametrize("inherited", [{}, {"PYTHONPATH": "/no/such/place"}])
def test_this_package_is_found_from_another_directory(inherited: Mapping[str, str]) -> None:
    environment = {**inherited, "PYTHONPATH": python_path(inherited)}
    program = "import mpsguard, os, sys; print(mpsguard.__file__, '/no/such/place' in sys.path)"
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd="/", capture_output=True, text=True, check=True
    ).stdout.split()
    assert Path(found[0]).parents[1] == Path(__file__).parents[3]
    assert found[1] == str(bool(inherited))
