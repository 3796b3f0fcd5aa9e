"""A process that ends when it is told to, and what this one has open: what the tests of how processes end share."""

import os
from collections.abc import Callable
from pathlib import Path

from mpsguard.linux.processes.process import ProcessHandle


def open_files() -> list[str]:
    return sorted(path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


class Doomed:
    """A forked child that waits to be told, then ends as ``how`` has it; exit status 77 if that does not end it."""

    def __init__(self, how: Callable[[], object]) -> None:
        may_read, self._may_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._may_write)
                os.read(may_read, 1)
                how()
            finally:
                os._exit(77)
        os.close(may_read)
        self.handle = ProcessHandle.open(self.pid)

    def end(self) -> None:
        """Let it go, and come back once it is a zombie."""
        os.close(self._may_write)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def reap(self) -> int:
        return os.waitpid(self.pid, 0)[1]
