"""The program that `mpsguard run` starts: its group, its signals, its end, and the orphans it leaves to us."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from mpsguard.linux import process_tree
from mpsguard.linux.process import ProcessHandle

_PYTHON_IGNORES: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python's own choice, which is none of the program's."""

_TERMINAL: Final = (signal.SIGTTIN, signal.SIGTTOU)

_KILL_ROUNDS: Final = 5
_KILLED_WITHIN: Final = 1.0
"""Seconds for a round of SIGKILLs: what was forked meanwhile gets the next one."""


class ChildProcess:
    """Owns one child and reaps it, and every orphan below it. Its group's number is its own until it is reaped."""

    def __init__(self, pid: int, own_group: bool) -> None:
        self.pid = pid
        self._own_group = own_group
        self.exit_code: int | None = None
        """As a shell has it: 128 and the signal's number for one that a signal ended. None while it lives."""

    @classmethod
    def start(cls, arguments: Sequence[str], environment: Mapping[str, str], *, own_group: bool) -> Self:
        """Start a program, found as a shell finds it; OSError if it cannot be.

        Descriptors that were given to us without close-on-exec are its too. With ``own_group`` it leads a process
        group, so that a terminal's signals reach us and not it.
        """
        process_tree.adopts_orphans()
        how: dict[str, Any] = {"setsigdef": _PYTHON_IGNORES}
        if own_group:
            how["setpgroup"] = 0
        pid = os.posix_spawnp(arguments[0], list(arguments), dict(environment), **how)
        return cls(pid, own_group)

    def reap(self, stopped_for_terminal: Callable[[], None]) -> None:
        """Take in every child that has ended; for SIGCHLD."""
        reap_children({self.pid: self}, stopped_for_terminal)

    def ended(self, status: int) -> None:
        """It was reaped."""
        code = os.waitstatus_to_exitcode(status)
        self.exit_code = 128 - code if code < 0 else code

    def stopping(self, number: signal.Signals) -> None:
        """The user wants it to end, and it will hear of it. Nothing would start it again."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program's group, or to it alone if it has none; to nobody once it was reaped."""
        if self.exit_code is not None:
            return
        # Of another user by now (set-user-ID): as with any other wrapper, there is nothing to be done.
        with suppress(PermissionError, ProcessLookupError):
            if self._own_group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def in_group(self, pid: int) -> bool:
        """Whether `signal` reaches a process."""
        try:
            return self.exit_code is None and self._own_group and os.getpgid(pid) == self.pid
        except ProcessLookupError:
            return False

    async def kill_all(self) -> None:
        """SIGKILL the program and all that came of it, again until nobody is left."""
        await kill_descendants(os.getpid())


def reap_children(programs: Mapping[int, ChildProcess], stopped_for_terminal: Callable[[], None]) -> None:
    """Take in every child that has ended, and tell those of ``programs`` (by pid)."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        program = programs.get(pid)
        if program is None:
            continue
        if not os.WIFSTOPPED(status):
            program.ended(status)
        elif os.WSTOPSIG(status) in _TERMINAL:
            stopped_for_terminal()


async def kill_descendants(root: int) -> None:
    """SIGKILL all below a process that adopts orphans, again until nobody is left."""
    for _ in range(_KILL_ROUNDS):
        handles = []
        for key in process_tree.descendants(root):
            try:
                handle = ProcessHandle.hold(key)
            except ProcessLookupError:
                continue
            handles.append(handle)
            with suppress(PermissionError, ProcessLookupError):
                handle.signal(signal.SIGKILL)
        for handle in handles:
            with handle:
                await handle.ended(_KILLED_WITHIN)
        if not handles:
            return
