"""Child processes of an event loop: their end within a deadline."""

import asyncio
from contextlib import suppress

from mpsguard.linux.processes.helper_process import HelperProcess


async def wait_or_kill(child: asyncio.subprocess.Process, deadline: float) -> int:
    """Return the exit status of a child, which has ended in any case afterwards.

    Raises:
        TimeoutError: it had not ended within ``deadline`` seconds, and was killed.
    """
    try:
        async with asyncio.timeout(deadline):
            return await child.wait()
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


async def end_of(helper: HelperProcess, deadline: float) -> int:
    """Return the exit status of a helper, as `wait_or_kill` does."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(helper.pidfd, ended.set)
    try:
        async with asyncio.timeout(deadline):
            await ended.wait()
    except BaseException:
        helper.kill()
        await ended.wait()
        raise
    finally:
        loop.remove_reader(helper.pidfd)
        if ended.is_set():
            status = helper.wait()
        else:
            helper.abandon()
    assert status is not None
    return status
