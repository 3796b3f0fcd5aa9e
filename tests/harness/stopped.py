"""A process that stands still for a while, so that a test's next steps are one to it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from mpsguard.linux.processes import procfs
from tests.harness.waiting import wait_for


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop the process, which no other may stop or continue, and continue it at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        # A thread carries a system call that it has begun out first.
        wait_for(f"process {pid} to stand still", lambda: _states(pid) == {"T"})
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> set[str | None]:
    """The states of its threads (proc(5)), each a letter."""
    return {procfs.state(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}
