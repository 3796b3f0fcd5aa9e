"""How much of a CPU a process has used, by the kernel's accounts."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_TICK: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_UTIME, _STIME = 11, 12
"""Indexes of fields 14 and 15 of /proc/PID/task/TID/stat behind the parenthesised command (proc_pid_stat(5))."""


class Usage(NamedTuple):
    """A process at one moment: what its threads have run so far. What an ended one ran is not in it."""

    at: float
    seconds: dict[int, float]
    """By thread id."""


class Share(NamedTuple):
    """Of one core, in percent, between two moments."""

    main: float
    others: float
    """All threads but the main one, together."""

    @property
    def total(self) -> float:
        """The process."""
        return self.main + self.others


def usage(pid: int) -> Usage:
    """Read it now. OSError if there is no such process.

    From ``schedstat``, in nanoseconds (Documentation/scheduler/sched-stats.rst); a kernel without it says user and
    system time in ticks of 10 ms.
    """
    threads: dict[int, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since the list was read
            threads[int(task.name)] = _seconds(task)
    return Usage(time.monotonic(), threads)


def share(pid: int, before: Usage, after: Usage) -> Share:
    """What ``pid`` used between the two; a thread that came meanwhile counts from its beginning."""
    used = {thread: seconds - before.seconds.get(thread, 0.0) for thread, seconds in after.seconds.items()}
    scale = 100.0 / (after.at - before.at)
    main = used.pop(pid, 0.0)
    return Share(main * scale, sum(used.values()) * scale)


def _seconds(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:
        stat = (task / "stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        return (int(fields[_UTIME]) + int(fields[_STIME])) * _TICK
