"""A lane over the simulated control daemon, without a guard about it."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from fault_injection.sim.script import Script
from mpsguard.guard.lanes import control_process
from mpsguard.guard.lanes.command import MAX_OWN, Command, CommandFailedError
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_spec import LaneSpec
from mpsguard.guard.lanes.settings import SettingsStore
from mpsguard.guard.model import LaneSettings
from mpsguard.linux.processes.stat_reader import StatReader
from tests.harness.waiting import PATIENCE
from tests.integration.guarded import SIMULATED


@asynccontextmanager
async def running_lane(
    settings: LaneSettings | None = None,
) -> AsyncIterator[tuple[Lane, asyncio.Task[None], "asyncio.Queue[int]"]]:
    """A lane, the task that looks after it, and the pids of its control daemons as they are started."""
    with tempfile.TemporaryDirectory(prefix="mg-") as root:
        spec = LaneSpec(
            name="default-0",
            domain="default",
            pipe_directory=Path(root, "run", "lanes", "default-0", "pipe"),
            log_directory=Path(root, "log"),
            control_binary=str(SIMULATED),
            multiuser=False,
            gpus=(),
            command_deadline=PATIENCE,
            start_deadline=PATIENCE,
            check_interval=PATIENCE,
            restart_burst=5,
            restart_window=60.0,
        )
        started: asyncio.Queue[int] = asyncio.Queue()

        def notice(kind: str, data: object) -> None:
            if kind == "lane_settled" and lane.report.control is not None:
                started.put_nowait(lane.report.control.pid)

        store = SettingsStore(Path(root, "state.json"), settings or LaneSettings())
        stats = StatReader()
        lane = Lane(spec, store, Path(root, "levers.json"), notice, stats=stats, start=control_process.launch)
        looking_after = asyncio.create_task(lane.run())
        try:
            yield lane, looking_after, started
        finally:
            if not looking_after.done():
                lane.expect_quit()
                with suppress(CommandFailedError):
                    await lane.ask("quit")
                await asyncio.wait({looking_after}, timeout=PATIENCE)
            looking_after.cancel()
            await asyncio.wait({looking_after})
            stats.close()


def test_a_quit_that_did_not_reach_a_daemon_that_lives_is_taken_back() -> None:
    async def scenario() -> None:
        async with running_lane() as (lane, looking_after, started):
            first = await started.get()
            os.kill(first, signal.SIGSTOP)
            under_way = asyncio.create_task(lane.ask("get_server_list"))
            for _ in range(3):
                await asyncio.sleep(0)
            waiting = [asyncio.create_task(lane.ask("get_server_list")) for _ in range(MAX_OWN)]
            await asyncio.sleep(0)
            with pytest.raises(CommandFailedError, match="wait already"):
                await lane.quit(Command("quit"))
            for each in (under_way, *waiting):
                each.cancel()
            os.kill(first, signal.SIGKILL)
            # It was no quit that ended it: there is another one.
            second = await started.get()
            assert second != first
            assert not looking_after.done()
            await lane.quit(Command("quit"))
            await looking_after

    asyncio.run(asyncio.wait_for(scenario(), 3 * PATIENCE))


def test_no_client_is_admitted_before_the_settings_of_a_restarted_daemon_are_back() -> None:
    async def scenario() -> None:
        async with running_lane(LaneSettings(active_thread_percentage=50, client_priority=1)) as (lane, _, started):
            first = await started.get()
            script = Script(lane.spec.pipe_directory)
            script.hang("set_default_active_thread_percentage")
            script.hang("set_default_client_priority")
            os.kill(first, signal.SIGKILL)
            while lane.report.control is None or lane.report.control.pid == first:
                await asyncio.sleep(0.01)
            admitted = asyncio.create_task(lane.admitting())
            script.clear("command.set_default_active_thread_percentage")
            # That it waits can be seen in no other way.
            done, _waiting = await asyncio.wait({admitted}, timeout=1.0)
            assert not done
            assert not lane.admits_now()
            script.clear()
            await admitted
            assert (await lane.ask("get_default_active_thread_percentage")).lines == ("50.0",)
            assert (await lane.ask("get_default_client_priority")).lines == ("1",)

    asyncio.run(asyncio.wait_for(scenario(), 3 * PATIENCE))
