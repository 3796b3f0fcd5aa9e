"""Runs many programs, some at once, each with a deadline and its output kept; and looks at them while they run."""

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tests.bench.core.stop import uninterrupted

LOOK: Final = 0.02
"""Seconds between two looks."""
_DEAD: Final = 10.0
"""Seconds in which a killed process has ended; one that the kernel holds for longer is given up."""
_MOST_TEXT: Final = 4 << 20
"""Bytes of a process's output that are kept."""


@dataclass(frozen=True)
class Command:
    """One process to start."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path | None = None
    """Where it works; None: where this process does."""


@dataclass(frozen=True)
class Task:
    """Processes that belong together: they start together, and each ends by itself."""

    label: str
    commands: tuple[Command, ...]
    within: float
    """Seconds after which those that still run are killed."""


@dataclass(frozen=True)
class End:
    """How a process ended."""

    pid: int
    status: int
    """Its exit status; a signal is negative."""
    text: str
    """What it wrote, to standard output and standard error."""
    late: bool = False
    """Whether it was killed at its deadline."""


@dataclass
class _Running:
    """A task under way; ``ends`` in the order of its commands."""

    number: int
    ends_at: float
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    outputs: list[IO[bytes]] = field(default_factory=list)
    ends: dict[int, End] = field(default_factory=dict)
    late: bool = False


Look = Callable[[int, int], None]
"""Is called with the number of a task and the pid of each of its processes at each look, the last one after its end."""
Done = Callable[[int, tuple[End, ...]], None]
"""Is called with the number of a task that has ended, and how its processes ended."""


def run(
    tasks: Sequence[Task],
    most: int,
    look: Look = lambda _number, _pid: None,
    done: Done = lambda _number, _ends: None,
) -> list[tuple[End, ...]]:
    """Run all of them, ``most`` at once, and return how they ended, in their order.

    Whatever ends this function ends the processes. Each has a session of its own, so that its children end with it.
    """
    ends: dict[int, tuple[End, ...]] = {}
    left = list(enumerate(tasks))
    running: list[_Running] = []
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        stack.callback(_end, running)
        stack.callback(_let_all_go, selector)
        while left or running:
            while left and len(running) < most:
                number, task = left.pop(0)
                _start(number, task, stack, running)
                for process in running[-1].processes:
                    handle = os.pidfd_open(process.pid)
                    selector.register(handle, selectors.EVENT_READ)
            for key, _ in selector.select(LOOK):
                _let_go(selector, key.fd)
            for each in list(running):
                for process in each.processes:
                    if process.pid not in each.ends:
                        look(each.number, process.pid)
                _reap(each)
                if len(each.ends) == len(each.processes):
                    running.remove(each)
                    ends[each.number] = tuple(each.ends[process.pid] for process in each.processes)
                    done(each.number, ends[each.number])
    return [ends[number] for number in range(len(tasks))]


def _let_go(selector: selectors.BaseSelector, handle: int) -> None:
    selector.unregister(handle)
    os.close(handle)


def _let_all_go(selector: selectors.BaseSelector) -> None:
    for key in list(selector.get_map().values()):
        _let_go(selector, key.fd)


def _start(number: int, task: Task, stack: ExitStack, running: list[_Running]) -> None:
    started = _Running(number, time.monotonic() + task.within)
    running.append(started)
    for command in task.commands:
        output = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - it is one
        with uninterrupted():
            process = subprocess.Popen(
                command.words,
                env=dict(command.environment),
                cwd=command.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            started.processes.append(process)
            started.outputs.append(output)


def _reap(running: _Running) -> None:
    now = time.monotonic()
    if now > running.ends_at and not running.late:
        running.late = True
        _kill(running)
    for process, output in zip(running.processes, running.outputs, strict=True):
        if process.pid in running.ends or (process.poll() is None and now < running.ends_at + _DEAD):
            continue
        output.seek(0)
        text = output.read(_MOST_TEXT).decode(errors="replace")
        output.close()
        status = process.returncode if process.returncode is not None else -signal.SIGKILL
        # Of one that has ended by itself the deadline says nothing.
        running.ends[process.pid] = End(process.pid, status, text, running.late and status == -signal.SIGKILL)


def _kill(running: _Running) -> None:
    """Kill the sessions of those that have not been reaped: until then a pid stands for nothing else."""
    for process in running.processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _end(running: list[_Running]) -> None:
    """End what still runs."""
    for each in running:
        _kill(each)
    for each in running:
        for process in each.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_DEAD)
