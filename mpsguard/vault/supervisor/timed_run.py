"""One run of a command from its start to its end, timed, with nothing left of it afterwards."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from mpsguard.linux.processes import process_tree
from mpsguard.linux.tasks import beside
from mpsguard.vault.supervisor.child_process import ChildProcess, kill_descendants, reap_children
from mpsguard.vault.supervisor.guard_client import EndWork, GuardSilentError
from mpsguard.vault.supervisor.supervisor import Supervisor

_STREAMS: Final[tuple[tuple[Any, ...], ...]] = (
    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
    (os.POSIX_SPAWN_DUP2, 2, 1),
)
"""Every run reads the same, nothing; what it prints does not mix with the results."""


class RunOutcome(msgspec.Struct, frozen=True):
    """How a run ended."""

    exit_code: int
    """As in a shell."""
    seconds: float
    """From just before its start until its end was seen."""
    interrupted_by: signal.Signals | None
    """The signal to this process that ended it, if one did."""
    out_of_time: bool
    """Whether it had to be ended at the limit."""


class _TimedProgram(ChildProcess):
    """A child process with the time of its end."""

    ended_at: float | None = None
    """CLOCK_MONOTONIC."""

    def ended(self, status: int) -> None:
        """As the base's."""
        self.ended_at = time.monotonic()
        super().ended(status)


async def run_once(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    end_work: EndWork,
    *,
    limit: float,
    grace: float,
    say: Callable[[str], None],
    watch: Callable[[], Awaitable[None]] | None = None,
) -> RunOutcome:
    """Run a command to its end; OSError if it cannot be started.

    Args:
        arguments: the command, searched in PATH.
        environment: all of its environment.
        end_work: asks the guard to end GPU work, before a process is ended.
        limit: seconds after which the command is ended.
        grace: seconds from SIGTERM to SIGKILL, for a command that is ended.
        say: prints a line.
        watch: runs beside the command, which is ended when it returns; what it raises is raised here afterwards.
    """
    started_at = 0.0
    programs: list[_TimedProgram] = []

    def start(_: Callable[[], None]) -> _TimedProgram:
        nonlocal started_at
        started_at = time.monotonic()
        programs.append(_TimedProgram.start(arguments, environment, own_group=True, file_actions=_STREAMS))
        return programs[0]

    supervisor = Supervisor(start, end_work, grace=grace, foreground=False)
    try:
        async with beside(_watched(supervisor, watch, limit)) as (watched,):
            exit_code = await supervisor.run(say)
    finally:
        await _end_leftovers(end_work)
    out_of_time = not watched.cancelled() and watched.result()
    (program,) = programs
    assert program.ended_at is not None
    return RunOutcome(exit_code, program.ended_at - started_at, supervisor.interrupted_by, out_of_time)


async def _watched(supervisor: Supervisor, watch: Callable[[], Awaitable[None]] | None, limit: float) -> bool:
    """End the program when ``watch`` has returned, or at the limit; returns whether it was the limit."""
    try:
        async with asyncio.timeout(limit):
            await (asyncio.Event().wait() if watch is None else watch())
    except TimeoutError:
        return True
    finally:
        supervisor.stop()
    return False


async def _end_leftovers(end_work: EndWork) -> None:
    """End what the command has started and not waited for: it would disturb the next run."""
    left = process_tree.descendants(os.getpid())
    if left:
        with suppress(GuardSilentError):
            await end_work(left)
        await kill_descendants(os.getpid())
    reap_children({}, lambda: None)
