"""A lane's answers as a test scripts them, and real processes to be ended."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mpsguard.guard.lanes.command import Command, CommandFailedError, CommandReply, CommandTimeoutError
from mpsguard.linux.processes.process import ProcessHandle

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
OBEDIENT = "import time; print('ready', flush=True); time.sleep(600)"


class ScriptedLane:
    """Answers as a control daemon would; what it was asked stands in ``asked``."""

    def __init__(self, listed: dict[int, int], answer: tuple[str, ...] | Exception | None) -> None:
        """``answer`` to terminate_client: lines, an error, or None for silence until the deadline."""
        self.listed = listed
        self.answer = answer
        self.asked: list[str] = []

    async def clients(self) -> dict[int, int]:
        return self.listed

    async def ask_for(self, user: Command, deadline: float | None) -> CommandReply:
        self.asked.append(user.line)
        if self.answer is None:
            await asyncio.sleep(deadline or 0)
            raise CommandTimeoutError(f"no answer to {user.line!r}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return CommandReply(self.answer, 0)


class UnlistedLane(ScriptedLane):
    """A control daemon that hangs, or cannot be reached, when it is asked for its clients."""

    async def clients(self) -> dict[int, int]:
        if self.answer is None:
            await asyncio.Event().wait()
        raise CommandFailedError("nobody listens")


@contextmanager
def living(program: str) -> Iterator[tuple[subprocess.Popen[bytes], ProcessHandle]]:
    """A process that is up, and a handle on it."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            with ProcessHandle.open(process.pid) as handle:
                yield process, handle
        finally:
            process.send_signal(signal.SIGKILL)
