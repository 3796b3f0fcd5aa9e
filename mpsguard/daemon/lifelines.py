"""The lifelines that are held now: taken when a client ends, let go when its work has drained or its time is over.

While a guard is replaced, the service manager's descriptor store holds them, under names that tell the next guard what
it needs to go on. Without one, a guard that is told to end waits for them.
"""

import asyncio
import os
import re
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
"""Names in the descriptor store begin with it; see `stored_name`."""
MOST: Final = 256
"""Held at once; one more takes the oldest one's place."""
_STORED: Final = re.compile(
    rf"{NAME}(?P<pid>\d+)-(?P<start_ticks>\d+)(?:\.(?P<execs>\d+))?-(?P<since>\d+)-(?P<until>\d+)(?P<beyond>-keep)?",
    re.ASCII,
)
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
    execs: int = 0
    """See `ProcessKey`."""

    @property
    def process(self) -> ProcessKey:
        """Whose it is."""
        return ProcessKey(self.pid, self.start_ticks, self.execs)


def stored_name(held: Held) -> str:
    """Its name in the descriptor store. Both end with this boot: that, and the clock whose milliseconds are in it."""
    since, until = round(1000 * held.since), round(1000 * held.until)
    programs = f".{held.execs}" if held.execs else ""
    return f"{NAME}{held.pid}-{held.start_ticks}{programs}-{since}-{until}{'-keep' if held.beyond else ''}"


def held_by_name(name: str) -> Held | None:
    """What `stored_name` was given, to the millisecond; None if the name is not of its form."""
    match = _STORED.fullmatch(name)
    if match is None:
        return None
    since, until = int(match["since"]) / 1000, int(match["until"]) / 1000
    pid, start_ticks, execs = int(match["pid"]), int(match["start_ticks"]), int(match["execs"] or 0)
    return Held(pid, start_ticks, since, until, match["beyond"] is not None, execs=execs)


class _Stored:
    """The descriptors of one lifeline that an earlier guard left in the store."""

    def __init__(self) -> None:
        self.files: list[int] = []
        self.names: set[str] = set()


class Lifelines:
    """Owns which are held and until when. All in one event loop."""

    def __init__(self, spaces: Spaces, idleness: Idleness, notice: Callable[[str, Mapping[str, Any]], None]) -> None:
        """``notice`` hears ``lifeline_held``, ``_adopted``, ``_overdue`` and ``_released``."""
        self._spaces = spaces
        self._idleness = idleness
        self._notice = notice
        self._held: dict[ProcessKey, Held] = {}
        self._stored: dict[ProcessKey, _Stored] = {}
        """Of those in ``_held`` that an earlier guard took: the others' descriptors are the sensor's."""
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
        held = Held(process.pid, process.start_ticks, now, now + hold.seconds, hold.beyond, execs=process.execs)
        service_manager.notify("FDSTORE=1", "FDPOLL=0", f"FDNAME={stored_name(held)}", fds=files)
        self._begin(held, "lifeline_held", hold.seconds)
        return True

    def release(self, process: ProcessKey, why: str) -> bool:
        """Let go of one; False if it is not held."""
        held = self._held.pop(process, None)
        if held is None:
            return False
        stored = self._stored.pop(process, None)
        for name in stored.names if stored is not None else (stored_name(held),):
            service_manager.notify("FDSTOREREMOVE=1", f"FDNAME={name}")
        if stored is None:
            self._spaces.release(process)
        else:
            self._close(stored)
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
        """Go on with what an earlier guard left in the store: descriptors, which are this object's, and their names.

        What has a name of another version's is held for ``seconds`` from now on, as of a process 0.
        """
        now = time.monotonic()
        found: dict[ProcessKey, Held] = {}
        for file, name in files:
            held = held_by_name(name) or Held(0, 0, now, now + seconds)
            found[held.process] = held
            stored = self._stored.setdefault(held.process, _Stored())
            stored.files.append(file)
            stored.names.add(name)
        for held in found.values():
            self._begin(held, "lifeline_adopted", max(0.0, round(held.until - now, 3)))

    async def drained(self) -> None:
        """Wait until none is held, none beyond its time; returns at once if the service manager holds them too."""
        if not os.environ.get("NOTIFY_SOCKET"):
            self._ending = True
            await self._empty.wait()

    def close(self) -> None:
        """Let go of nothing that the service manager does not hold too: the end of this process does that."""
        if self._timer is not None:
            self._timer.cancel()
        for stored in self._stored.values():
            self._close(stored)
        self._stored.clear()
        self._closers.close(0.0)

    def _begin(self, held: Held, kind: str, seconds: float) -> None:
        self._held[held.process] = held
        self._empty.clear()
        self._notice(kind, {"pid": held.pid, "start_ticks": held.start_ticks, "seconds": seconds})
        self._idleness.watch_idleness(True)
        self._look_later()

    def _close(self, stored: _Stored) -> None:
        for file in stored.files:
            self._closers.run(partial(os.close, file))

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
