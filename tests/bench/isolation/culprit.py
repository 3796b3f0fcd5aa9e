"""A client that misbehaves once, and the proof that it did: how it ended, and that its kernel was on the GPU."""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.core.bench import Bench, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.programs import Work
from tests.bench.triage.memory_group import spawning_into

START: Final = 30.0
_INJECTED: Final = 10.0
_ENDS: Final = 10.0
"""Seconds in which a process ends that was told to, or that ends itself."""


@dataclass(frozen=True)
class Kind:
    """One way to end, by the name of a numbered fault; ``fault`` is ``exitidle`` for a harmless end."""

    name: str
    fault: str
    status: int
    """The exit status that proves it; a signal is negative."""
    busy: bool = True
    """Whether a kernel is in flight then."""
    slow: bool = False
    """Whether it takes a while from the injection to the end: its kernel must outlast that."""
    needs_group: bool = False


KILL: Final = Kind("SIGKILL", "kill", -signal.SIGKILL)
SEGV: Final = Kind("SIGSEGV", "segv", -signal.SIGSEGV)
EXIT: Final = Kind("exit(0)", "exit", 0)
OOM: Final = Kind("OOM kill", "oom", -signal.SIGKILL, slow=True, needs_group=True)
CLEAN: Final = Kind("end in order", "exitidle", 0, busy=False)
KILL_IDLE: Final = Kind("SIGKILL while idle", "killidle", -signal.SIGKILL, busy=False)


@dataclass(frozen=True)
class Crash:
    """When it was (monotonic seconds)."""

    injected: float
    ended: float
    """When the end of the process was seen."""


def start(
    bench: Bench,
    target: Target,
    clients: Clients,
    kind: Kind,
    *,
    in_flight: float | None = None,
    memory: int = 0,
    group: Path | None = None,
) -> Client:
    """Start one, to be let loose by `crash`; it need not have its context yet."""
    work = Work(seconds=60.0, controlled=True, fault=kind.fault, memory=memory, in_flight=in_flight)
    with spawning_into(group) if group is not None else nullcontext():
        return clients.start(bench.programs.worker(work), target.pipe_directory, f"{target.name}-{kind.fault}")


def crash(culprit: Client, kind: Kind) -> Crash:
    """Let it commit its fault and see it end; SuiteError or TimeoutError if it did not happen as it must."""
    with watched(culprit.pid) as process:
        culprit.go()
        culprit.wait_for("injected", _INJECTED)
        ended = wait_for_end(process, _ENDS, f"the culprit of {kind.name}")
    done = culprit.finish()
    injected, begun = done.find("injected"), done.find("fault")
    if injected is None or begun is None or done.exit_status != kind.status:
        raise SuiteError(f"{kind.name} did not happen: {done.describe()}")
    if kind.busy:
        running = done.find("running")
        if running is None or not injected.number("in_flight"):
            raise SuiteError(f"{kind.name}: no kernel was in flight: {done.describe()}")
        # The kernel began after `fault`, so it was still there at the end if that came within its length.
        if kind.slow and ended >= begun.monotonic + running.number("seconds"):
            raise SuiteError(f"{kind.name}: its kernel may have ended before it did: {done.describe()}")
    return Crash(injected.monotonic, ended)


@contextmanager
def watched(pid: int) -> Iterator[int]:
    """A pidfd on a process that is not reaped yet, for a `with` block."""
    process = os.pidfd_open(pid)
    try:
        yield process
    finally:
        os.close(process)


def wait_for_end(process: int, timeout: float, who: str) -> float:
    """Wait until the pidfd says that the process has ended; when that was seen. SuiteError if it does not."""
    poller = select.poll()
    poller.register(process, select.POLLIN)
    if not poller.poll(timeout * 1000):
        raise SuiteError(f"{who} did not end within {timeout:g} s")
    return time.monotonic()
