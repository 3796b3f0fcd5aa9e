"""Processes as an operator sees them: command and user. Read with psutil; the guard does not use it.

The guard's own readers (`mpsguard.linux.processes`) stand on pidfds and start times in clock ticks, and on reads that
can be abandoned: a client could otherwise be taken for the process that got its pid, or make a read wait. A command
that an operator runs once can wait, and only shows what it found.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from mpsguard.linux.processes.procfs import printable

_CONTROL: Final = "nvidia-cuda-mps-control"
_COMM: Final = 15
_AS_DAEMON: Final = frozenset({"-d", "-f"})
"""Without one of these the program is the daemon's command line (its manual page)."""
STOCK_DEFAULT: Final = Path("/tmp/nvidia-mps")  # noqa: S108  # the vendor's own default pipe directory
_MAX_COMMAND: Final = 80
"""Characters of a command line that are shown."""


@dataclass(frozen=True)
class ControlDaemon:
    """A running MPS control daemon."""

    pid: int
    user: str
    pipe_directory: Path | None
    """None if its environment may not be read."""


def control_daemons() -> list[ControlDaemon]:
    """Return the MPS control daemons in this pid namespace, lanes of guards among them, by pid."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "name", "username"]):
        words = process.info["cmdline"] or []
        # The kernel keeps 15 characters of the name, which the MPS server has too.
        if not _CONTROL.startswith((process.info["name"] or "?")[:_COMM]):
            continue
        if _CONTROL not in (Path(word).name for word in words) or not _AS_DAEMON.intersection(words):
            continue
        environment = process.info["environ"]
        directory = None
        # A process of another user has no environment that can be read; one that was never given any has an empty one.
        if environment:
            directory = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or STOCK_DEFAULT)
        found.append(ControlDaemon(process.pid, printable(process.info["username"] or "?"), directory))
    return sorted(found, key=lambda each: each.pid)


def describe(pid: int) -> str:
    """Return "process PID (COMMAND, user NAME)", or less where it is gone or may not be looked at."""
    try:
        process = psutil.Process(pid)
        command = printable(" ".join(process.cmdline()) or process.name())
        user = printable(process.username())
    except psutil.Error:
        return f"process {pid}"
    if len(command) > _MAX_COMMAND:
        command = command[: _MAX_COMMAND - 1] + "…"
    return f"process {pid} ({command}, user {user})"
