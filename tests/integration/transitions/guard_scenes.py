"""The scenes of a whole guard, on lanes with a control daemon that cannot be started: its run, and a reload."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from mpsguard.guard import config
from mpsguard.guard.daemon.commands.table import HANDLERS
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.daemon.guard_log import LogLevel
from mpsguard.guard.daemon.lane_specs import launches
from mpsguard.guard.daemon.site import GuardSite
from mpsguard.guard.processes.launcher import Launcher
from mpsguard.linux.tasks import beside
from tests.harness.guard_config import GuardFile
from tests.harness.waiting import until
from tests.integration.transitions.interruption import Operation

Scenery = AsyncGenerator[Operation, Exception | None]


class House:
    """A configuration, and the guards that run on it one after another."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "mpsguard.toml"
        self.write("info")

    def write(self, level: str) -> None:
        file = GuardFile(self.root, self.root / "mps", Path("/bin/false"), guard=f'log_level = "{level}"')
        self.path.write_text(file.text())

    @asynccontextmanager
    async def guard(self) -> AsyncIterator[Guard]:
        """A guard that does not run yet."""
        settings = config.load(self.path)
        with Launcher(launches(settings)) as launcher:
            yield Guard(
                settings,
                HANDLERS,
                launcher,
                None,
                site=GuardSite,
                load=lambda: config.load(self.path),
                log_level=LogLevel("error"),
            )


Play = Callable[[House], Scenery]


async def ready(guard: Guard) -> None:
    await until(lambda: any(event.kind == "guard_ready" for event in guard.events.recent()))


async def stop_when_ready(guard: Guard, stop: asyncio.Event) -> None:
    await ready(guard)
    stop.set()


async def running(house: House) -> Scenery:
    async with house.guard() as guard:
        stop = asyncio.Event()
        async with beside(stop_when_ready(guard, stop)):
            yield guard.run(stop)
    # Nothing of it is in the way of the next one.
    async with house.guard() as guard:
        stop = asyncio.Event()
        async with beside(stop_when_ready(guard, stop)):
            await guard.run(stop)


async def reloading(house: House) -> Scenery:
    async with house.guard() as guard:
        stop = asyncio.Event()
        async with beside(guard.run(stop)) as (serving,):
            await ready(guard)
            house.write("debug")
            yield guard.reload()
            assert guard.config.guard.log_level in ("info", "debug")
            await guard.reload()
            assert guard.config.guard.log_level == "debug"
            stop.set()
            await serving


PLAYS: list[Play] = [running, reloading]
