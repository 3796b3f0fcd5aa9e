"""Commands to a lane: whenever the worker is closed, each caller that asked is answered."""

import asyncio
import re
from pathlib import Path

import pytest

from mpsguard.guard.lanes.command import Command, CommandFailedError, CommandWorker, ask


@pytest.mark.parametrize("turns", range(24))
def test_each_caller_is_answered_in_whatever_turn_of_the_loop_the_worker_is_closed(turns: int, tmp_path: Path) -> None:
    """No daemon listens there, so that the whole exchange takes fewer turns than are tried here."""

    async def scenario() -> None:
        worker = CommandWorker(tmp_path, lambda _: None, lambda: None)
        asked = [asyncio.create_task(worker.ask(Command("quit"), None)) for _ in range(2)]
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await worker.close()
            for each in asked:
                with pytest.raises(CommandFailedError):
                    await each
            with pytest.raises(CommandFailedError, match="given up"):
                await worker.ask(Command("quit"), None)

    asyncio.run(scenario())


def test_a_command_that_reaches_no_daemon_names_the_directory(tmp_path: Path) -> None:
    with pytest.raises(CommandFailedError, match=re.escape(f"{tmp_path}: No such file")):
        asyncio.run(ask(tmp_path, Command("get_server_list"), 20))


def test_there_is_no_task_before_the_first_command(tmp_path: Path) -> None:
    """A guard that ends before its lanes run closes none of them."""

    async def scenario() -> None:
        worker = CommandWorker(tmp_path, lambda _: None, lambda: None)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(CommandFailedError):
            await worker.ask(Command("quit"), None)
        await worker.close()

    asyncio.run(scenario())
