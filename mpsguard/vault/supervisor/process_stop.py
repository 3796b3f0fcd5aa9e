"""Stops one process of a program while the others continue: always its GPU work first."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from mpsguard.linux.descriptors.io_fence import IoFence
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import process_tree, procfs
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.quiesce import Quiesce
from mpsguard.vault.supervisor.child_process import ChildProcess
from mpsguard.vault.supervisor.guard_client import EndWork, GuardSilentError

_LOOK_AGAIN: Final = 0.001
QUIESCE_DEADLINE: Final = 5.0
"""Seconds after which a process that cannot be stopped is no longer waited for."""


async def quiesce(program: ChildProcess, fence: IoFence | None, say: Callable[[str], None]) -> None:
    """Stop a process and its descendants; on return, none of them can write to a kept connection.

    Either all of them have come to a standstill, or the process is outside its I/O fence, which is now closed, or
    `QUIESCE_DEADLINE` is over and a line says so.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    stopped = Quiesce()
    known: set[ProcessKey] = set()
    while program.exit_code is None:
        # A process that was forked before its parent stopped is found in the next round.
        new = [key for key in _stopped_tree(program) if key not in known]
        if known and not new:
            return
        for key in new:
            _signal(key, signal.SIGSTOP)
        known.update(new)
        # Check all of them each time, because the time of each one counts from its first check.
        while not all([stopped.reached(key.pid) for key in known]):  # noqa: C419
            if fence is not None and fence.shut():
                return
            if loop.time() - begun > QUIESCE_DEADLINE:
                say(f"process {program.pid} was superseded, and cannot be stopped")
                return
            await asyncio.sleep(_LOOK_AGAIN)


async def kill(program: ChildProcess, end_work: EndWork) -> None:
    """End a process and its descendants: first their GPU work, then the processes by SIGKILL."""
    tree = _tree(program)
    with suppress(GuardSilentError):
        await end_work(tree)
    for key in {*tree, *_tree(program)}:
        _signal(key, signal.SIGKILL)


def kill_stopped(program: ChildProcess) -> None:
    """End a process that has been stopped, and its descendants, by SIGKILL alone.

    Its server would wait for a stopped process to let go of its work, and all other clients with it
    (`mpsguard.guard.remedies.termination`). Killed, it leaves that work to its lifeline.
    """
    for key in _tree(program):
        _signal(key, signal.SIGKILL)


async def kill_after_grace(program: ChildProcess, end_work: EndWork, grace: float) -> None:
    """Let a process end on its own; after ``grace`` seconds, `kill` it."""
    await asyncio.sleep(grace)
    if program.exit_code is None:
        await kill(program, end_work)


async def end(program: ChildProcess, end_work: EndWork, grace: float) -> None:
    """End a process: first its GPU work, then SIGTERM, and after ``grace`` seconds `kill`."""
    with suppress(GuardSilentError):
        await end_work(_tree(program))
    program.signal(signal.SIGTERM)
    program.signal(signal.SIGCONT)
    await kill_after_grace(program, end_work, grace)


def _tree(program: ChildProcess) -> Sequence[ProcessKey]:
    return _with_all_below(program, process_tree.descendants)


def _stopped_tree(program: ChildProcess) -> Sequence[ProcessKey]:
    """Return the tree of a process that is being stopped. Faster than `_tree`, because its successor waits for this."""
    return _with_all_below(program, process_tree.descendants_at_rest)


def _with_all_below(program: ChildProcess, below: Callable[[int], Sequence[ProcessKey]]) -> Sequence[ProcessKey]:
    if program.exit_code is not None:
        return ()
    try:
        return [procfs.process_key(program.pid), *below(program.pid)]
    except ProcessLookupError:
        return ()


def _signal(key: ProcessKey, number: signal.Signals) -> None:
    with suppress(PermissionError, ProcessLookupError), ProcessHandle.hold(key) as handle:
        handle.signal(number)
