"""The lifelines that are held now: taken when a client ends, let go when its work has drained or its time is over.

While a guard is replaced, the service manager's descriptor store holds them. Without one, a guard that is told to end
waits for them.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from mpsguard.linux import service_manager
from mpsguard.linux.side_threads import SideThreads
from mpsguard.model import ProcessKey
from mpsguard.remedies import lifeline
from mpsguard.remedies.lifeline import Hold

NAME: Final = "lifeline-"
"""Names in the descriptor store begin with it; the pid follows."""
MOST: Final = 256
"""Held at once; one more takes the oldest one's place."""
_LOOK: Final = 0.25
"""Seconds between two looks at whether the GPUs are idle, while any is held."""


class Spaces(Protocol):
    """Who watches the clients' address spaces and can hold on to them (the `uvm` sensor)."""

    def hold(self, key: ProcessKey) -> tuple[int, ...]:
        """Hold on to an ended client's address spaces; descriptors of them, which stay the callee's. None: ()."""

    def release(self, key: ProcessKey) -> None:
        """Let go of them."""


class Idleness(Protocol):
    """Who can tell that no GPU has anything to do (the `nvml` sensor)."""

    def watch_idleness(self, wanted: bool) -> None:
        """Whether anybody wants to know."""

    def idle_seen_at(self) -> float | None:
        """When no GPU was last seen to be at work (CLOCK_MONOTONIC), or None."""


class Held(msgspec.Struct, frozen=True):
    """One lifeline."""

    pid: int
    start_ticks: int
    since: float
    """CLOCK_MONOTONIC seconds."""
    until: float
    """When its time is over."""
    beyond: bool = False
    """Whether it is held on to then, until the GPUs are seen idle or an operator lets go of it."""
    overdue: bool = False
    """Whether that is so now."""


class Lifelines:
    """Owns which are held and until when. All in one event loop."""

    def __init__(self, spaces: Spaces, idleness: Idleness, notice: Callable[[str, Mapping[str, Any]], None]) -> None:
        """``notice`` hears ``lifeline_held``, ``lifeline_overdue`` and ``lifeline_released``."""
        self._spaces = spaces
        self._idleness = idleness
        self._notice = notice
        self._held: dict[ProcessKey, Held] = {}
        self._adopted: list[tuple[int, str]] = []
        self._closers = SideThreads("lifeline-close", 1)
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False
        self._empty = asyncio.Event()
        self._empty.set()

    def take(self, process: ProcessKey, hold: Hold) -> bool:
        """Hold on to an ended client; False if there is nothing to hold on to."""
        files = self._spaces.hold(process)
        if not files:
            return False
        if len(self._held) >= MOST:
            self.release(min(self._held, key=lambda key: self._held[key].since), "too many are held")
        now = time.monotonic()
        self._held[process] = Held(process.pid, process.start_ticks, now, now + hold.seconds, hold.beyond)
        self._empty.clear()
        service_manager.notify("FDSTORE=1", "FDPOLL=0", f"FDNAME={NAME}{process.pid}", fds=files)
        self._notice("lifeline_held", {"pid": process.pid, "start_ticks": process.start_ticks, "seconds": hold.seconds})
        self._idleness.watch_idleness(True)
        self._look_later()
        return True

    def release(self, process: ProcessKey, why: str) -> bool:
        """Let go of one; False if it is not held."""
        held = self._held.pop(process, None)
        if held is None:
            return False
        service_manager.notify("FDSTOREREMOVE=1", f"FDNAME={NAME}{process.pid}")
        self._spaces.release(process)
        seconds = round(time.monotonic() - held.since, 3)
        self._notice("lifeline_released", {"pid": process.pid, "why": why, "held_seconds": seconds})
        if not self._held:
            self._empty.set()
            self._idleness.watch_idleness(False)
        return True

    def release_pid(self, pid: int, why: str) -> bool:
        """Let go of all of one pid, by an operator's wish; False if none is held."""
        released = [self.release(process, why) for process in list(self._held) if process.pid == pid]
        return any(released)

    def held(self) -> list[Held]:
        """All, oldest first."""
        return sorted(self._held.values(), key=lambda each: each.since)

    def adopt(self, files: Iterable[tuple[int, str]], seconds: float) -> None:
        """Take over descriptors that an earlier guard left in the store; when its clients ended is not known."""
        self._adopted += files
        if self._adopted:
            asyncio.get_running_loop().call_later(seconds, self._drop_adopted)

    async def drained(self) -> None:
        """Wait until none is held, none beyond its time; returns at once if the service manager holds them too."""
        self._ending = True
        if not os.environ.get("NOTIFY_SOCKET"):
            await self._empty.wait()

    def close(self) -> None:
        """Let go of nothing that the service manager does not hold too: the end of this process does that."""
        if self._timer is not None:
            self._timer.cancel()
        self._drop_adopted(forget=False)
        self._closers.close(0.0)

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._timer = None
        now, idle = time.monotonic(), self._idleness.idle_seen_at()
        for process, held in list(self._held.items()):
            if lifeline.drained(held.since, idle):
                self.release(process, "the GPUs are idle")
            elif now >= held.until and (self._ending or not held.beyond):
                self.release(process, "its time is over")
            elif now >= held.until and not held.overdue:
                self._held[process] = msgspec.structs.replace(held, overdue=True)
                # Its kernel may never end. `mpsguard-ctl move` brings sessions off its lane; then it can be let go.
                self._notice("lifeline_overdue", {"pid": process.pid, "start_ticks": process.start_ticks})
        if self._held:
            self._look_later()

    def _drop_adopted(self, *, forget: bool = True) -> None:
        for fd, name in self._adopted:
            if forget:
                service_manager.notify("FDSTOREREMOVE=1", f"FDNAME={name}")
            self._closers.run(partial(os.close, fd))
        self._adopted.clear()
