"""The program that `mpsguard run` starts: its process group, its signals, its end, and its orphans."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from mpsguard.linux.processes import process_tree
from mpsguard.linux.processes.process import ProcessHandle

_PYTHON_IGNORES: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores on its own; the program must not inherit that."""

_TERMINAL: Final = (signal.SIGTTIN, signal.SIGTTOU)

_KILL_ROUNDS: Final = 5
_KILLED_WITHIN: Final = 1.0
"""Seconds for a round of SIGKILLs; processes forked meanwhile get the next round."""


class ChildProcess:
    """Owns one child and reaps it, and every orphan below it. Its process group's id is valid until it is reaped."""

    def __init__(self, pid: int, own_group: bool) -> None:
        self.pid = pid
        self._own_group = own_group
        self.exit_code: int | None = None
        """As in a shell: 128 plus the signal's number if a signal ended it. None while it lives."""

    @classmethod
    def start(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        own_group: bool,
        file_actions: Sequence[tuple[Any, ...]] = (),
    ) -> Self:
        """Start a program, searched in PATH; raise OSError if it cannot be started.

        It inherits descriptors without close-on-exec. With ``own_group`` it leads a process group, so that a terminal's
        signals go to the supervisor only. ``file_actions`` are those of `os.posix_spawn`.
        """
        process_tree.adopts_orphans()
        how: dict[str, Any] = {"setsigdef": _PYTHON_IGNORES, "file_actions": file_actions}
        if own_group:
            how["setpgroup"] = 0
        pid = os.posix_spawnp(arguments[0], list(arguments), dict(environment), **how)
        return cls(pid, own_group)

    def reap(self, stopped_for_terminal: Callable[[], None]) -> None:
        """Reap every child that has ended; for SIGCHLD."""
        reap_children({self.pid: self}, stopped_for_terminal)

    def ended(self, status: int) -> None:
        """Record the exit status after the child was reaped."""
        code = os.waitstatus_to_exitcode(status)
        self.exit_code = 128 - code if code < 0 else code

    def stopping(self, number: signal.Signals) -> None:
        """Do nothing: the user wants it to end, and no new process would be started anyway."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program's group, or to the program if it has none; ignored once it was reaped."""
        if self.exit_code is not None:
            return
        # It may run as another user by now (set-user-ID) and cannot be signalled then, as with any other wrapper.
        with suppress(PermissionError, ProcessLookupError):
            if self._own_group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def in_group(self, pid: int) -> bool:
        """Return whether `signal` reaches a process."""
        try:
            return self.exit_code is None and self._own_group and os.getpgid(pid) == self.pid
        except ProcessLookupError:
            return False

    async def kill_all(self) -> None:
        """SIGKILL the program and all its descendants, repeatedly until none is left."""
        await kill_descendants(os.getpid())


def reap_children(programs: Mapping[int, ChildProcess], stopped_for_terminal: Callable[[], None]) -> None:
    """Reap every child that has ended, and inform those of ``programs`` (by pid)."""
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
    """SIGKILL all descendants of a process that adopts orphans, repeatedly until none is left."""
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
