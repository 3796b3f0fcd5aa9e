"""Whether processes that were sent SIGSTOP have come to a standstill: a signal takes effect a little later.

A thread that was sent the signal runs no instruction of its program any more; but it may be inside a system call, which
goes on to its end. One that waits in the driver can take a third of a second to get out (a CUDA process after an SM
fault, H200, driver 580.159.04). What counts is whether the call can still write to a descriptor: which call it is, the
kernel tells of threads that sleep in it, and of one that never sleeps how much time it has used.
"""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_STOPPED: Final = frozenset(b"TtZX")
_EXITING: Final = 0x4
"""PF_EXITING in the flags of /proc/PID/stat: it never returns to its program."""

_HARMLESS: Final[Mapping[str, frozenset[int]]] = {
    # ioctl, futex, mmap, munmap, madvise, sched_yield, nanosleep, clock_nanosleep, exit, exit_group
    "x86_64": frozenset({16, 202, 9, 11, 28, 24, 35, 230, 60, 231}),
    "aarch64": frozenset({29, 98, 222, 215, 233, 124, 101, 115, 93, 94}),
}
"""System calls that neither write to nor read from a connection."""

_LONG: Final = 20_000_000
"""Nanoseconds on a processor: no write to a socket that does not sleep takes as long (16 MiB, the most that a socket
holds by default, are copied in a quarter of it). Where time is counted in ticks, two more must have begun."""


_MOST: Final = 4096
"""Bytes; each of these files is shorter."""

_TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Quiesce:
    """Watches processes that were sent SIGSTOP before, until none of their threads can write anywhere.

    What it has seen of a thread holds until that gets SIGCONT: then it is to be watched by another one of these.
    """

    def __init__(self) -> None:
        self._harmless = _HARMLESS.get(platform.machine(), frozenset())
        self._still: set[str] = set()
        """Threads that were seen stopped, or inside a call that is harmless."""
        self._used: dict[str, int] = {}
        """Nanoseconds of each thread, when it was first looked at."""

    def reached(self, pid: int) -> bool:
        """Return whether no thread of a process writes any more."""
        try:
            threads = [thread.name for thread in Path(f"/proc/{pid}/task").iterdir()]
        except OSError:
            return True
        # Each is looked at, since time counts from the first look.
        still = [self._is_still(thread) for thread in threads]
        return all(still)

    def _is_still(self, thread: str) -> bool:
        if thread in self._still:
            return True
        try:
            stat = _read(thread, "stat")
        except OSError:
            return True
        fields = stat[stat.rindex(b")") + 2 :].split()
        still = (
            fields[0][0] in _STOPPED
            or bool(int(fields[6]) & _EXITING)
            or _call_of(thread) in self._harmless
            or self._has_used(thread, _time_of(thread, fields)) > _LONG
        )
        if still:
            self._still.add(thread)
        return still

    def _has_used(self, thread: str, used: int) -> int:
        """Nanoseconds on a processor since the first look, at least."""
        return used - self._used.setdefault(thread, used)


def _call_of(thread: str) -> int | None:
    """The system call in which a thread sleeps; None if it runs, or is not ours to look at."""
    try:
        return int(_read(thread, "syscall").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _time_of(thread: str, stat: list[bytes]) -> int:
    """Nanoseconds on a processor; to the tick, where the kernel counts them no better."""
    try:
        used = int(_read(thread, "schedstat").split()[0])
    except (OSError, ValueError, IndexError):
        used = 0
    return used or (int(stat[11]) + int(stat[12])) * _TICK


def _read(thread: str, name: str) -> bytes:
    # Without a Path and a buffer: there are dozens of threads, and a takeover waits for all of them.
    fd = os.open(f"/proc/{thread}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MOST)
    finally:
        os.close(fd)
