"""A lane's sentinel where the system has no descriptor left."""

import asyncio
import os
import resource
from pathlib import Path
from typing import Any, cast

from mpsguard.guard.incidents.lane_sentinel import LaneSentinel
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.model import LaneReport, LaneState, Server
from mpsguard.linux.identity import ProcessKey


class ActiveLane:
    """A lane with a server; no descriptor is left once it was asked."""

    def __init__(self) -> None:
        servers = (Server(ProcessKey(os.getpid(), 0), "ACTIVE"),)
        self.report = LaneReport("d-0", "d", LaneState.ACTIVE, "", 0.0, "", "", servers=servers)

    async def fresh(self) -> LaneReport:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return self.report


def test_it_says_so_and_tries_again_later(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main() -> None:
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def notice(kind: str, data: Any) -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            said.set_result(f"{kind}: {data['detail']}")

        sentinel = LaneSentinel(
            cast("Lane", ActiveLane()), lambda: 1, lambda *_: None, notice, (str(tmp_path / "none"),)
        )
        standing = asyncio.create_task(sentinel.run())
        try:
            awaited: set[asyncio.Future[Any]] = {standing, said}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED, timeout=30)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert not standing.done(), standing
            assert (await said).endswith("Too many open files")
            assert sentinel.state().detail == (await said).removeprefix("sentinel_failed: ")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            standing.cancel()
            await asyncio.wait({standing})

    asyncio.run(main())
