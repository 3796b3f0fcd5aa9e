"""How one process of several is ended while the others go on: its GPU work first, as with everything that is ended."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from mpsguard.control_api.async_client import NoAnswerError
from mpsguard.linux import process_tree, procfs
from mpsguard.linux.io_fence import IoFence
from mpsguard.linux.process import ProcessHandle
from mpsguard.linux.quiesce import Quiesce
from mpsguard.model import ProcessKey
from mpsguard.supervisor.child_process import ChildProcess
from mpsguard.supervisor.supervisor import EndWork

_LOOK_AGAIN: Final = 0.001
STILL_WITHIN: Final = 5.0
"""Seconds after which a process that cannot be stopped is not waited for any more."""


async def hold_still(program: ChildProcess, gate: IoFence | None, say: Callable[[str], None]) -> None:
    """Stop a process and all below it where they are; when this returns none of them writes to a kept connection.

    Either they have come to a standstill, or the process has left its gate.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    stopped = Quiesce()
    known: set[ProcessKey] = set()
    while program.exit_code is None:
        # Who was forked before its parent stood still is found when we look again.
        new = [key for key in _tree_at_rest(program) if key not in known]
        if known and not new:
            return
        for key in new:
            _signal(key, signal.SIGSTOP)
        known.update(new)
        # All are looked at each time, since time counts from the first look.
        while not all([stopped.reached(key.pid) for key in known]):  # noqa: C419
            if gate is not None and gate.shut():
                return
            if loop.time() - begun > STILL_WITHIN:
                say(f"process {program.pid} was superseded, and cannot be stopped")
                return
            await asyncio.sleep(_LOOK_AGAIN)


async def kill(program: ChildProcess, end_work: EndWork) -> None:
    """End a process and all below it: its GPU work, then itself by SIGKILL."""
    tree = _tree(program)
    with suppress(NoAnswerError):
        await end_work(tree)
    for key in {*tree, *_tree(program)}:
        _signal(key, signal.SIGKILL)


async def outlive(program: ChildProcess, end_work: EndWork, grace: float) -> None:
    """Let a process end by itself; after ``grace`` seconds as `kill` does."""
    await asyncio.sleep(grace)
    if program.exit_code is None:
        await kill(program, end_work)


async def end(program: ChildProcess, end_work: EndWork, grace: float) -> None:
    """End a process: its GPU work, then itself by SIGTERM, and after ``grace`` seconds as `kill` does."""
    with suppress(NoAnswerError):
        await end_work(_tree(program))
    program.signal(signal.SIGTERM)
    program.signal(signal.SIGCONT)
    await outlive(program, end_work, grace)


def _tree(program: ChildProcess) -> Sequence[ProcessKey]:
    return _with_all_below(program, process_tree.descendants)


def _tree_at_rest(program: ChildProcess) -> Sequence[ProcessKey]:
    """The same of a process that is being stopped, and quicker: its successor waits for this."""
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
