"""Ending one process that the suite started, by its pidfd."""

import select
import signal
from contextlib import suppress

from mpsguard.linux.processes.process import ProcessHandle


def ended(process: ProcessHandle, timeout: float) -> bool:
    """Wait for the end of a process; False if it still lives after `timeout` seconds."""
    poller = select.poll()
    poller.register(process, select.POLLIN)
    return bool(poller.poll(timeout * 1000))


def end(process: ProcessHandle, first: signal.Signals, grace: float) -> None:
    """Signal it, wait `grace` seconds, kill it."""
    with suppress(ProcessLookupError):
        process.signal(first)
        if not ended(process, grace):
            process.signal(signal.SIGKILL)
            ended(process, grace)
