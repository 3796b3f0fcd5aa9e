"""A process held by pidfd: its end can be waited for, and a signal never hits a successor of its pid."""

import asyncio
import errno
import os
import select
import signal
from functools import cache
from typing import Final, Self

from mpsguard.linux.closing import Closing
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs

_NO_PROCESS: Final = frozenset({errno.EINVAL, errno.ENOENT})
"""Of pidfd_open(2): the number is none, or that of a thread that does not lead its process (ENOENT on Linux 6.18)."""


def open_pidfd(pid: int) -> int:
    """Return a pidfd of the process that has ``pid`` now; ProcessLookupError if there is none."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in _NO_PROCESS:
            raise
        raise ProcessLookupError(f"no process {pid}") from None
    except OverflowError:
        raise ProcessLookupError(f"no process {pid}") from None


@cache
def tell_apart() -> bool:
    """Whether this kernel gives each process' pidfds an inode of their own, for as long as it runs (Linux 6.9)."""
    one, other = os.pidfd_open(os.getpid()), os.pidfd_open(os.getppid() or 1)
    try:
        return os.fstat(one).st_ino != os.fstat(other).st_ino
    finally:
        os.close(one)
        os.close(other)


class ProcessHandle(Closing):
    """Owns one pidfd. Readable (poll, asyncio's add_reader) once the process has ended."""

    def __init__(self, pidfd: int, key: ProcessKey, image: tuple[int, int] | None = None) -> None:
        """``image``: where the program and its stack began when the key was read, if that was read."""
        self._pidfd = pidfd
        self.key = key
        self.image = image

    @classmethod
    def open(cls, pid: int) -> Self:
        """Hold the process that has ``pid`` now; ProcessLookupError if there is none.

        May last as long as the process decides, as `hold` may: an event loop has `stat_reader` for that.
        """
        pidfd = open_pidfd(pid)
        try:
            key = procfs.process_key(pid)
        except BaseException:
            os.close(pidfd)
            raise
        return cls.of_living(pidfd, key)

    @classmethod
    def hold(cls, process: ProcessKey) -> Self:
        """Hold this very process; ProcessLookupError if it has ended, or its pid belongs to another."""
        handle = cls.open(process.pid)
        if handle.key != process:
            handle.close()
            raise ProcessLookupError(f"process {process.pid} is another one now")
        return handle

    @classmethod
    def of_living(cls, pidfd: int, key: ProcessKey, image: tuple[int, int] | None = None) -> Self:
        """Take over ``pidfd`` of a process that was just looked up; closed again if it is gone (ProcessLookupError)."""
        handle = cls(pidfd, key, image)
        # The start time was read by number: it is this process's only if the pidfd had not ended by then.
        if not handle.alive():
            handle.close()
            raise ProcessLookupError(f"process {key.pid} has ended")
        return handle

    def copy(self) -> "ProcessHandle":
        """Return another handle of the same process, which the caller closes."""
        return ProcessHandle(os.dup(self._pidfd), self.key, self.image)

    def stopped(self) -> bool:
        """Whether the process is stopped, by a signal or by a debugger. Never waits."""
        # Read by number, which is this process' as long as it has not ended.
        return procfs.state(self.key.pid) in ("T", "t") and self.alive()

    def fileno(self) -> int:
        """The pidfd, for pollers."""
        return self._pidfd

    def alive(self) -> bool:
        """True until the process has ended (a zombie has)."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return not poller.poll(0)

    async def ended(self, within: float) -> bool:
        """Wait at most ``within`` seconds for the process' end; whether it has ended. One waiter at a time."""
        loop = asyncio.get_running_loop()
        seen = asyncio.Event()
        loop.add_reader(self._pidfd, seen.set)
        try:
            async with asyncio.timeout(within):
                await seen.wait()
        except TimeoutError:
            return not self.alive()
        finally:
            loop.remove_reader(self._pidfd)
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this very process; ProcessLookupError if it has been reaped."""
        signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Give the pidfd back; safe to call twice."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
