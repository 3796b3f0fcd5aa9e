"""The MPS server of a lane of all users (-M): started before the first client comes, where that must know it."""

import asyncio
import os
import time
from typing import Final

from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.guard.lanes.lane import Lane
from mpsguard.linux.identity import ProcessKey

_POLL: Final = 0.01
"""Seconds between two questions while a server starts, which takes 0.3 s (H200)."""
_SERVES: Final = "ACTIVE"
"""What the control daemon says of a server that takes clients and commands."""


class ServerStart:
    """Starts the server of any lane, once for all clients that wait for it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def server(self, lane: Lane, within: float) -> ProcessKey:
        """Return the lane's server, which is started if there is none.

        Raises:
            CommandFailedError: there is none that takes commands after ``within`` seconds.
        """
        async with self._lock:
            due = time.monotonic() + within
            if not lane.report.servers:
                await lane.ask(f"start_server -uid {os.geteuid()}")
            # The daemon answers before the server is up, and tells no more.
            while not any(server.state == _SERVES for server in lane.report.servers):
                if time.monotonic() > due:
                    raise CommandFailedError("the control daemon has no server that is ready")
                await asyncio.sleep(_POLL)
                await lane.fresh()
            return lane.report.servers[0].process
