"""Tells when a process executes another program: pid, start time and pidfd stay as they were.

The process events connector tells at once. It takes CAP_NET_ADMIN and the initial pid, user and network namespaces, and
holds so many pids; a process that it cannot watch is looked at from time to time: where its program and its stack
begin is chosen anew by each exec (randomize_va_space). One that it can watch is looked at until that was compared once:
the process may have executed another program after it was held and before it was watched.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_events import ProcessEventKind, ProcessEvents
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.tasks import Owner

LOOK: Final = 0.25
"""Seconds between two looks: some 30 us of processor time for each process, and nothing is lost while an exec is not
seen, for what the process had open of the GPU is kept."""

_HELD_UP_LOOKS: Final = 16
"""Looks that leave out a process which could not be read in time: each costs a reader its life."""


def exec_events() -> ProcessEvents:
    """What the kernel tells of execs; OSError if it does not."""
    return ProcessEvents(ProcessEventKind.EXEC)


class _Watched:
    def __init__(self, handle: ProcessHandle, uid: int, told: bool) -> None:
        self.key = handle.key
        self.uid = uid
        self.told = told
        """Whether the kernel tells of it, from now on."""
        self.image = handle.image
        self.compared = False
        """Whether a look has found the program that it had when it was held."""
        self.left_out = 0
        """Looks that leave it out, from now on."""

    @property
    def looked_for(self) -> bool:
        """Whether nothing but a look would tell of an exec."""
        return not (self.told and self.compared)


class ExecWatch:
    """Owns the kernel's events, or a timer in their place. Made, and told of processes, in a running event loop."""

    def __init__(
        self,
        executed: Callable[[ProcessKey], None],
        stats: StatReader,
        events: Callable[[], ProcessEvents] = exec_events,
    ) -> None:
        """``executed`` is called once for a watched process, which is not watched any more then."""
        self._executed = executed
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looks = Owner()
        self._events: ProcessEvents | None = None
        with suppress(OSError):
            self._events = events()
            self._loop.add_reader(self._events.fileno(), self._happened)

    def watch(self, handle: ProcessHandle, uid: int) -> None:
        """Tell of this process' next exec. ``uid``: the user to the share of which looks at it count."""
        pid = handle.key.pid
        told = self._events is not None and self._events.watch(pid)
        self._watched[pid] = _Watched(handle, uid, told)
        self._look_later()

    def forget(self, key: ProcessKey) -> None:
        """The process is of no interest any more, or has ended."""
        watched = self._watched.get(key.pid)
        if watched is not None and watched.key == key:
            del self._watched[key.pid]
            if self._events is not None:
                self._events.forget(key.pid)

    def close(self) -> None:
        """Stop watching; safe to call twice."""
        self._watched.clear()
        self._looks.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._events is not None:
            self._loop.remove_reader(self._events.fileno())
            self._events.close()
            self._events = None

    def _happened(self) -> None:
        assert self._events is not None
        happened = self._events.happened()
        for pid in happened.pids:
            self._tell(pid)
        if not happened.complete:
            self._looks.spawn(self._look_at(list(self._watched.values())))

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK, self._look)

    def _look(self) -> None:
        self._timer = None
        due = []
        for watched in self._watched.values():
            if not watched.looked_for:
                continue
            if watched.left_out:
                watched.left_out -= 1
            else:
                due.append(watched)
        self._looks.spawn(self._look_and_again(due))

    async def _look_and_again(self, due: list[_Watched]) -> None:
        try:
            await self._look_at(due)
        finally:
            # Also if one could not be read for want of descriptors.
            if any(watched.looked_for for watched in self._watched.values()):
                self._look_later()

    async def _look_at(self, due: list[_Watched]) -> None:
        of_user: dict[int, list[_Watched]] = {}
        for watched in due:
            of_user.setdefault(watched.uid, []).append(watched)
        await asyncio.gather(*(self._look_at_user(uid, of_user[uid]) for uid in of_user))

    async def _look_at_user(self, uid: int, due: list[_Watched]) -> None:
        lines = await self._stats.stats([watched.key.pid for watched in due], uid)
        for watched, line in zip(due, lines, strict=True):
            if line is None:
                watched.left_out = _HELD_UP_LOOKS
            now = procfs.stat_of(line).image if line else None
            if now is None or self._watched.get(watched.key.pid) is not watched:
                continue
            if watched.image is not None and now != watched.image:
                self._tell(watched.key.pid)
            else:
                watched.image, watched.compared = now, True

    def _tell(self, pid: int) -> None:
        watched = self._watched.get(pid)
        if watched is not None:
            self.forget(watched.key)
            self._executed(watched.key)
