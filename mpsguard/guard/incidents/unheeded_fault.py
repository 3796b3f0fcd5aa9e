"""Unheeded fault: ends a server without clients that takes no notice of a fault of the work that they left on the GPU.

Without a client a server notices no fault. The next client's context meets it, however much later that comes: after an
endless kernel's client was killed alone, the first ones that came died of its fault 10 s later (H100, 580.159.04).
"""

import asyncio
import time
from contextlib import suppress
from typing import Final

from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.sensor_hub import SensorHub
from mpsguard.guard.incidents.server_end import end_servers
from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_judge import UNHEARD

UNHEEDED: Final = 1.0
"""Seconds after the sign of a fault in which a server notices it if it does at all (0.4 s seen with clients)."""

_PAUSE: Final = 0.5
"""Seconds between two looks at a lane that still has clients."""


class UnheededFaults:
    """Owns the ends of servers of one domain's lanes that are left with a fault."""

    def __init__(self, domain: DomainView, events: EventStream) -> None:
        """Create it; `run` does the work."""
        self._domain = domain
        self._events = events
        self._prompted = asyncio.Event()
        self._ended: dict[str, float] = {}
        """When a server of each lane was last told to end: a stranger's faults outside of MPS are signs, too."""

    def lane_changed(self) -> None:
        """Take note of a lane's state."""
        self._prompted.set()

    async def run(self, sensors: SensorHub) -> None:
        """Look after the lanes until cancelled; ``sensors`` are told of each server before it is ended."""
        while True:
            self._prompted.clear()
            waits = [wait for lane in self._domain.lanes.all if (wait := await self._look(lane, sensors)) is not None]
            with suppress(TimeoutError):
                async with asyncio.timeout(min(waits, default=None)):
                    await self._prompted.wait()

    async def _look(self, lane: Lane, sensors: SensorHub) -> float | None:
        """End a lane's server if it is time; return the seconds until the next look, None without any."""
        name, now = lane.spec.name, time.monotonic()
        since = lane.recovery.unheeded()
        if since is None or now - self._ended.get(name, float("-inf")) < UNHEARD:
            return None
        if now < since + UNHEEDED:
            return since + UNHEEDED - now
        if any(name in client.lanes for client in self._domain.clients.all()):
            return _PAUSE
        try:
            listed = await lane.clients()
        except CommandFailedError:
            return _PAUSE
        # The same fault as before the question.
        if listed or lane.recovery.unheeded() != since:
            return _PAUSE
        self._ended[name] = time.monotonic()
        await end_servers(lane, self._domain.name, sensors, self._events)
        return None
