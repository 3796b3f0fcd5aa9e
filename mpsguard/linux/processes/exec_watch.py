"""Tells when a process executes another program: pid, start time and pidfd stay as they were.

The process events connector tells at once. It takes CAP_NET_ADMIN and the initial pid, user and network namespaces, and
holds so many pids; a process that it cannot watch is looked at from time to time: where its program and its stack
begin is chosen anew by each exec (randomize_va_space). /proc/PID/stat does not wait for the lock of the memory map.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_events import ProcessEventKind, ProcessEvents
from mpsguard.model import ProcessKey

_PROC: Final = Path("/proc")
_START_CODE, _START_STACK = 23, 25
"""Indexes of fields 26 and 28 of /proc/PID/stat behind the parenthesised command."""

LOOK: Final = 0.25
"""Seconds between two looks: some 20 us of processor time for each process, and nothing is lost while an exec is not
seen, for what the process had open of the GPU is kept."""


def exec_events() -> ProcessEvents:
    """What the kernel tells of execs; OSError if it does not."""
    return ProcessEvents(ProcessEventKind.EXEC)


class _Watched(NamedTuple):
    key: ProcessKey
    image: tuple[int, int] | None
    told: bool
    """Whether the kernel tells of it."""


class ExecWatch:
    """Owns the kernel's events, or a timer in their place. Made, and told of processes, in a running event loop."""

    def __init__(
        self, executed: Callable[[ProcessKey], None], events: Callable[[], ProcessEvents] = exec_events
    ) -> None:
        """``executed`` is called once for a watched process, which is not watched any more then."""
        self._executed = executed
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._events: ProcessEvents | None = None
        with suppress(OSError):
            self._events = events()
            self._loop.add_reader(self._events.fileno(), self._happened)

    def watch(self, handle: ProcessHandle) -> None:
        """Tell of this process' next exec."""
        pid = handle.key.pid
        # In this order: an exec in between is told of twice rather than never.
        told = self._events is not None and self._events.watch(pid)
        self._watched[pid] = _Watched(handle.key, image(pid), told)
        if not told:
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
            self._look_at(list(self._watched))

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK, self._look)

    def _look(self) -> None:
        self._timer = None
        self._look_at([pid for pid, watched in self._watched.items() if not watched.told])
        if any(not watched.told for watched in self._watched.values()):
            self._look_later()

    def _look_at(self, pids: list[int]) -> None:
        for pid in pids:
            now, watched = image(pid), self._watched.get(pid)
            if watched is not None and None not in (now, watched.image) and now != watched.image:
                self._tell(pid)

    def _tell(self, pid: int) -> None:
        watched = self._watched.get(pid)
        if watched is not None:
            self.forget(watched.key)
            self._executed(watched.key)


def image(pid: int) -> tuple[int, int] | None:
    """Where the program and the stack of a process begin; None if it has ended, or we may not know (CAP_SYS_PTRACE)."""
    try:
        stat = procfs.read_short(f"{_PROC}/{pid}/stat")
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    found = int(fields[_START_CODE]), int(fields[_START_STACK])
    # What a process may not see of another is shown as 0 or 1 (fs/proc/array.c).
    return found if min(found) > 1 else None
