"""What serves a pipe directory, and commands to it."""

import asyncio
import os
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from mpsguard.guard.lanes import command as commands
from mpsguard.guard.lanes.command import Command, CommandFailedError, CommandReply
from mpsguard.guard.lanes.mps_protocol import QUITS, VERSION_COMMAND
from mpsguard.linux.sockets.listens import listens

DEFAULT_PIPE_DIRECTORY: Final = "/tmp/nvidia-mps"  # noqa: S108 - the vendor's default
DEFAULT_LOG_DIRECTORY: Final = "/var/log/nvidia-mps"
"""The vendor's default."""
PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOGS: Final = "CUDA_MPS_LOG_DIRECTORY"

_GREETED_WITHIN: Final = 60.0
"""Seconds for a greeting where a process listens: a guard that the service manager starts for it may be on its way."""
_ENDING: Final = 20.0
"""Seconds for the end of a guard without clients, of which its keeper gives it 15."""
_LOOK_AGAIN: Final = 0.1
SUN_PATH: Final = 107
"""Most bytes of a socket's path (unix(7))."""
_LONGEST_NAME: Final = "control_privileged"


class PipeDirectoryError(Exception):
    """No socket can be in the directory; one line says why."""


class ServedBy(Enum):
    """What serves a pipe directory."""

    NONE = "nothing"
    GUARD = "mpsguard"
    ENDING = "mpsguard, which was told to quit"
    STOCK = "the vendor's control daemon"


def pipe_directory(environment: Mapping[str, str]) -> Path:
    """Return the pipe directory that an environment names, or the vendor's default, as an absolute path.

    Raises:
        PipeDirectoryError: a socket's path would be too long.
        OSError: the path is relative, and the working directory is gone.
    """
    directory = _absolute(environment.get(PIPES) or DEFAULT_PIPE_DIRECTORY)
    longest = len(os.fsencode(directory / _LONGEST_NAME))
    if longest > SUN_PATH:
        excess = longest - SUN_PATH
        raise PipeDirectoryError(
            f"{PIPES}: {excess} bytes too long, as a socket's path has at most {SUN_PATH}; name a shorter directory "
            f"than {directory}"
        )
    return directory


def log_directory(environment: Mapping[str, str]) -> Path:
    """Return the log directory that an environment names, or the vendor's default, as an absolute path; OSError."""
    return _absolute(environment.get(LOGS) or DEFAULT_LOG_DIRECTORY)


def look(directory: Path) -> ServedBy:
    """Return what serves ``directory``.

    Raises:
        CommandFailedError: a process listens, and does not answer in time.
    """
    if not is_served(directory):
        return ServedBy.NONE
    try:
        lines = ask(directory, VERSION_COMMAND, _GREETED_WITHIN).lines
    except CommandFailedError:
        if not is_served(directory):
            # It has ended meanwhile.
            return ServedBy.NONE
        raise
    if not lines or not lines[0][:1].isdigit():
        return ServedBy.STOCK
    return ServedBy.ENDING if QUITS in lines else ServedBy.GUARD


def settled(directory: Path) -> ServedBy:
    """Return what serves ``directory``, once a guard that was told to quit has ended; `ENDING` if it takes long.

    After `quit` the vendor's daemon is gone as soon as it has answered; a guard and its keeper take a moment longer.
    """
    due = time.monotonic() + _ENDING
    while (served := look(directory)) is ServedBy.ENDING and time.monotonic() < due:
        time.sleep(_LOOK_AGAIN)
    return served


def ask(directory: Path, line: str, deadline: float | None) -> CommandReply:
    """Send one command, on the privileged socket where this user may use it; CommandFailedError without an answer.

    A daemon that does not greet for a minute, or drops each connection, is not waited for without a deadline either.
    """
    privileged = os.access(directory / _LONGEST_NAME, os.W_OK)
    command = Command(line, privileged=privileged)
    greeted_within = _GREETED_WITHIN if deadline is None else min(deadline, _GREETED_WITHIN)
    return asyncio.run(commands.ask(directory, command, deadline, greeted_within=greeted_within))


def is_served(directory: Path) -> bool:
    """Return whether a process listens there."""
    return listens(directory / "control")


def _absolute(path: str) -> Path:
    return Path(path) if path.startswith("/") else Path.cwd() / path
