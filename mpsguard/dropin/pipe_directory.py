"""What serves a pipe directory, and commands to it."""

import asyncio
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from mpsguard.lanes import command as commands
from mpsguard.lanes.command import Command, CommandReply
from mpsguard.lanes.mps_protocol import VERSION_COMMAND
from mpsguard.linux.sockets import seqpacket

DEFAULT_PIPE_DIRECTORY: Final = "/tmp/nvidia-mps"  # noqa: S108 - the vendor's default
DEFAULT_LOG_DIRECTORY: Final = "/var/log/nvidia-mps"
"""The vendor's default."""

_LOOK_DEADLINE: Final = 60.0
"""Seconds for an answer where a process listens: a guard that the service manager starts for it may be on its way."""


class ServedBy(Enum):
    """What serves a pipe directory."""

    NONE = "nothing"
    GUARD = "mpsguard"
    STOCK = "the vendor's control daemon"


def pipe_directory(environment: Mapping[str, str]) -> Path:
    """Return the pipe directory that an environment names, or the vendor's default."""
    return Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPE_DIRECTORY)


def log_directory(environment: Mapping[str, str]) -> Path:
    """Return the log directory that an environment names, or the vendor's default."""
    return Path(environment.get("CUDA_MPS_LOG_DIRECTORY") or DEFAULT_LOG_DIRECTORY)


def look(directory: Path, deadline: float = _LOOK_DEADLINE) -> ServedBy:
    """Return what serves ``directory``.

    Raises:
        CommandFailedError: a process listens, and does not answer within ``deadline`` seconds.
    """
    if not is_served(directory):
        return ServedBy.NONE
    reply = ask(directory, VERSION_COMMAND, deadline)
    known = len(reply.lines) == 1 and reply.lines[0][:1].isdigit()
    return ServedBy.GUARD if known else ServedBy.STOCK


def ask(directory: Path, line: str, deadline: float | None) -> CommandReply:
    """Send one command, on the privileged socket where this user may use it; CommandFailedError without an answer."""
    privileged = os.access(directory / "control_privileged", os.W_OK)
    return asyncio.run(commands.ask(directory, Command(line, privileged=privileged), deadline))


def is_served(directory: Path) -> bool:
    """Return whether a process listens there."""
    return seqpacket.listens(directory / "control")
