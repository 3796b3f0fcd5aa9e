"""The held lifelines: each begins when a client ends, and is released when its work has drained or its time is over.

A kernel that outlives its process' address space faults, and under MPS that ends all clients; if the address space is
kept, the kernel ends by itself, unnoticed (H200, driver 580.159.04). The stock driver does not tell whether an ended
client's work still runs (docs/concepts/lifelines.md lists what was tried). So the decision rests on how the process
ended, and on whether the GPUs have been idle since, which proves that nothing runs.

While a guard is replaced, the service manager's descriptor store holds them, under names with all that the next guard
needs. Without a store, a guard that is told to stop waits until all are released.
"""

import asyncio
import os
import re
import time
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

import msgspec

from mpsguard.guard.evidence import ProcessEnded
from mpsguard.guard.model import Lifeline, Notify
from mpsguard.linux.identity import ROOT, ProcessKey
from mpsguard.linux.side_threads import SideThreads
from mpsguard.linux.systemd.notify_queue import NotifyQueue
from mpsguard.linux.user_share import Place, Room, UserShare

IDLE_WINDOW: Final = 1.1
"""Seconds covered by a reading of NVML's utilisation, with a margin: the sample period is at most 1 s (nvml.h)."""
NAME: Final = "lifeline-"
"""Prefix of the names in the descriptor store; see `stored_name`."""
MOST: Final = 256
"""Lifelines held at once; one more replaces the oldest of the user with the most."""
MOST_OF_A_USER: Final = 64
"""Lifelines of one user but root; one more replaces the user's oldest. A server takes 48 or 60 clients."""
MOST_STORED: Final = 768
"""Descriptors in the service manager's store, usually two per lifeline; the vault uses the rest of its 1280."""
MOST_STORED_OF_A_USER: Final = 192
"""A quarter of `MOST_STORED`, the same share as of the lifelines themselves."""
_STORED: Final = re.compile(
    rf"{NAME}(?P<pid>\d+)-(?P<start_ticks>\d+)(?:\.(?P<execs>\d+))?-(?P<since>\d+)-(?P<until>\d+)(?P<beyond>-keep)?"
    r"(?:-u(?P<uid>\d+))?",
    re.ASCII,
)
_NO_SHARE: Final = (None, ROOT)
"""Users that are not held to one: root, and that of lifelines which an earlier version stored without a user."""
_TELL: Final = 3.0
"""Seconds for a busy service manager to read what a guard that ends has told it."""
IDLE: Final = "the GPUs are idle"
"""Why a lifeline was released after which nothing of its client's work can go on."""

_LOOK: Final = 0.25
"""Seconds between two checks whether the GPUs are idle, while any lifeline is held."""


class Hold(msgspec.Struct, frozen=True):
    """How long to keep a client's address space, unless the GPUs are seen idle before."""

    seconds: float
    """0: not at all."""
    beyond: bool = False
    """Whether to keep it even longer, until the GPUs are seen idle or an operator releases it: its kernel may never
    end, and nothing can end it from outside."""


def hold_for(ended: ProcessEnded, *, crash_hold: float, exit_hold: float, beyond: bool = False) -> Hold:
    """Return how long to keep the address space of a client after its end.

    Args:
        ended: how it ended.
        crash_hold: seconds after an end by a signal or with a status other than 0.
        exit_hold: seconds after an exit with status 0.
        beyond: see `Hold`; only for clients that did not exit with status 0.
    """
    clean = ended.signal is None and ended.exit_code == 0
    return Hold(exit_hold) if clean else Hold(crash_hold, beyond)


def drained(ended_at: float, idle_seen_at: float | None) -> bool:
    """Return whether a reading of no utilisation at ``idle_seen_at`` covers only time after the client's end."""
    return idle_seen_at is not None and idle_seen_at - IDLE_WINDOW >= ended_at


class Spaces(Protocol):
    """Owner of the clients' address spaces (the `uvm` sensor)."""

    def hold(self, key: ProcessKey) -> tuple[int, ...]:
        """Keep an ended client's address spaces; return their descriptors, which the callee still owns, or ()."""

    def release(self, key: ProcessKey) -> None:
        """Release an ended client's address spaces."""


class Idleness(Protocol):
    """Observer of the GPUs' utilisation (the `nvml` sensor)."""

    def watch_idleness(self, wanted: bool) -> None:
        """Start or stop the observation."""

    def idle_seen_at(self) -> float | None:
        """Return when all GPUs were last seen idle (CLOCK_MONOTONIC seconds), or None."""


def stored_name(held: Lifeline) -> str:
    """Return the name in the descriptor store, with times in milliseconds of CLOCK_MONOTONIC.

    Neither the store nor that clock survives a reboot.
    """
    since, until = round(1000 * held.since), round(1000 * held.until)
    programs = f".{held.execs}" if held.execs else ""
    user = f"-u{held.uid}" if held.uid is not None else ""
    return f"{NAME}{held.pid}-{held.start_ticks}{programs}-{since}-{until}{'-keep' if held.beyond else ''}{user}"


def held_by_name(name: str) -> Lifeline | None:
    """Return the lifeline that `stored_name` was called with, to the millisecond; None for any other name."""
    match = _STORED.fullmatch(name)
    if match is None:
        return None
    since, until = int(match["since"]) / 1000, int(match["until"]) / 1000
    pid, start_ticks, execs = int(match["pid"]), int(match["start_ticks"]), int(match["execs"] or 0)
    uid = int(match["uid"]) if match["uid"] is not None else None
    return Lifeline(pid, start_ticks, since, until, match["beyond"] is not None, execs=execs, uid=uid)


class _StoredLifelines:
    """The descriptors of one lifeline that an earlier guard left in the store."""

    def __init__(self) -> None:
        self.files: list[int] = []
        self.names: set[str] = set()


class Lifelines:
    """Owns the held lifelines and their deadlines. All in one event loop."""

    def __init__(self, spaces: Spaces, idleness: Idleness, notice: Notify) -> None:
        """Create it, without lifelines.

        Args:
            spaces: keeps the address spaces.
            idleness: tells when the GPUs are idle.
            notice: called with the kind and data of the events ``lifeline_held``, ``lifeline_adopted``,
                ``lifeline_not_stored``, ``lifeline_overdue`` and ``lifeline_released``.
        """
        self._spaces = spaces
        self._idleness = idleness
        self._notice = notice
        self._held: dict[ProcessKey, Lifeline] = {}
        self._share: UserShare[int | None] = UserShare(MOST, MOST_OF_A_USER, privileged=_NO_SHARE)
        self._places: dict[ProcessKey, Place] = {}
        """Of each lifeline."""
        self._stored_share: UserShare[int | None] = UserShare(MOST_STORED, MOST_STORED_OF_A_USER, privileged=_NO_SHARE)
        self._given: dict[ProcessKey, Place] = {}
        """Places in the service manager's store, one for each descriptor, of each lifeline that has some there."""
        self._stored: dict[ProcessKey, _StoredLifelines] = {}
        """Descriptors of lifelines from an earlier guard; the sensor owns the others' descriptors."""
        self._manager = NotifyQueue()
        self._closers = SideThreads("lifeline-close", 1)
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False
        self._empty = asyncio.Event()
        self._empty.set()

    def take(self, process: ProcessKey, hold: Hold, uid: int | None = None) -> bool:
        """Hold the lifeline of an ended client; return False if it has no address space to keep."""
        files = self._spaces.hold(process)
        if not files:
            return False
        self._make_room(uid)
        now = time.monotonic()
        held = Lifeline(
            process.pid, process.start_ticks, now, now + hold.seconds, hold.beyond, execs=process.execs, uid=uid
        )
        self._store(held, files)
        self._begin(held, "lifeline_held", hold.seconds)
        return True

    def release(self, process: ProcessKey, why: str) -> bool:
        """Release the lifeline of a client; return False if none is held."""
        held = self._held.pop(process, None)
        if held is None:
            return False
        self._places.pop(process).give_back()
        if (given := self._given.pop(process, None)) is not None:
            given.give_back()
        stored = self._stored.pop(process, None)
        for name in stored.names if stored is not None else (stored_name(held),):
            self._manager.notify("FDSTOREREMOVE=1", f"FDNAME={name}")
        if stored is None:
            self._spaces.release(process)
        else:
            self._close(stored)
        seconds = round(time.monotonic() - held.since, 3)
        self._notice("lifeline_released", {"pid": process.pid, "uid": held.uid, "why": why, "held_seconds": seconds})
        if not self._held:
            self._empty.set()
            self._idleness.watch_idleness(False)
        return True

    def release_pid(self, pid: int, why: str) -> bool:
        """Release all lifelines of one pid, on an operator's request; return False if none is held."""
        released = [self.release(process, why) for process in list(self._held) if process.pid == pid]
        return any(released)

    def held(self) -> list[Lifeline]:
        """Return all held lifelines, oldest first."""
        return sorted(self._held.values(), key=lambda each: each.since)

    def adopt(self, files: Iterable[tuple[int, str]], seconds: float) -> None:
        """Adopt the lifelines that an earlier guard left in the store.

        Args:
            files: descriptors, which this object owns from now on, and their names.
            seconds: how long to hold a descriptor with a name of another version; its process counts as 0.
        """
        now = time.monotonic()
        found: dict[ProcessKey, Lifeline] = {}
        for file, name in files:
            held = held_by_name(name) or Lifeline(0, 0, now, now + seconds)
            found[held.process] = held
            stored = self._stored.setdefault(held.process, _StoredLifelines())
            stored.files.append(file)
            stored.names.add(name)
        for held in found.values():
            self._given[held.process] = self._stored_share.exceed(held.uid, len(self._stored[held.process].files))
            self._begin(held, "lifeline_adopted", max(0.0, round(held.until - now, 3)))

    async def drained(self) -> None:
        """Release each lifeline when its time is over, and wait for the last.

        If the service manager's store holds them too, wait only until it has been told of all.
        """
        if os.environ.get("NOTIFY_SOCKET"):
            await self._manager.flushed(_TELL)
        else:
            self._ending = True
            await self._empty.wait()

    def close(self) -> None:
        """Close what the service manager holds too; the end of this process releases the rest."""
        if self._timer is not None:
            self._timer.cancel()
        for stored in self._stored.values():
            self._close(stored)
        self._stored.clear()
        self._manager.close()
        self._closers.close(0.0)

    def _make_room(self, uid: int | None) -> None:
        match self._share.room(uid):
            case Room.OWN_SHARE:
                self._release_oldest(uid, "too many of its user are held")
            case Room.NONE:
                self._release_oldest(self._share.heaviest(), "too many are held")

    def _release_oldest(self, uid: int | None, why: str) -> None:
        theirs = (held for held in self._held.values() if held.uid == uid)
        self.release(min(theirs, key=lambda held: held.since).process, why)

    def _store(self, held: Lifeline, files: tuple[int, ...]) -> None:
        """Store copies in the service manager's store, if there is room: it silently drops what exceeds its limit."""
        if not os.environ.get("NOTIFY_SOCKET"):
            return
        places = self._stored_share.take(held.uid, len(files))
        if places is not None:
            name = f"FDNAME={stored_name(held)}"
            if self._manager.notify("FDSTORE=1", "FDPOLL=0", name, fds=files):
                self._given[held.process] = places
                return
            places.give_back()
        self._notice("lifeline_not_stored", {"pid": held.pid, "uid": held.uid, "descriptors": len(files)})

    def _begin(self, held: Lifeline, kind: str, seconds: float) -> None:
        self._held[held.process] = held
        self._places[held.process] = self._share.exceed(held.uid)
        self._empty.clear()
        data = {"pid": held.pid, "uid": held.uid, "start_ticks": held.start_ticks, "seconds": seconds}
        self._notice(kind, data)
        self._idleness.watch_idleness(True)
        self._look_later()

    def _close(self, stored: _StoredLifelines) -> None:
        for file in stored.files:
            self._closers.run(partial(os.close, file))

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._timer = None
        now, idle = time.monotonic(), self._idleness.idle_seen_at()
        for process, held in list(self._held.items()):
            if drained(held.since, idle):
                self.release(process, IDLE)
            elif now >= held.until and (self._ending or not held.beyond):
                self.release(process, "its time is over")
            elif now >= held.until and not held.overdue:
                self._held[process] = msgspec.structs.replace(held, overdue=True)
                # Its kernel may never end. After `mpsguard-ctl move` has moved the sessions off its lane, an operator
                # can release it.
                data = {"pid": process.pid, "uid": held.uid, "start_ticks": process.start_ticks}
                self._notice("lifeline_overdue", data)
        if self._held:
            self._look_later()
