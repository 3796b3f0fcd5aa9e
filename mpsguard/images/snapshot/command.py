"""A snapshot as the command takes it: the copying process, listened to, and the draft, given its name or removed."""

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.images.snapshot import messages
from mpsguard.images.snapshot.draft import SnapshotDraft
from mpsguard.images.snapshot.errors import FailureKind, NotPreloadedError, SnapshotError, SnapshotRoomError
from mpsguard.images.snapshot.messages import Copied, Expected, Message, SnapshotFailed, Whole
from mpsguard.linux.processes.helper_process import HelperProcess, module_command, user_environment

MODULE: Final = "mpsguard.images.snapshot"
QUIET: Final = 60.0
"""Seconds without a word after which the copying process is taken to hang, beyond the program's deadline: making a
context takes a second, writing 256 MiB to a slow disk some ten."""
_DYING: Final = 5.0
"""Seconds for the end after SIGKILL."""
_ENDING: Final = 10.0
"""Seconds for the end after its last word."""
_MOST_LINE: Final = 1 << 16


def take(
    pid: int,
    target: Path,
    *,
    deadline: float,
    on_expected: Callable[[int], None],
    on_copied: Callable[[int], None],
    quiet: float = QUIET,
) -> Whole:
    """Take a snapshot of process ``pid`` into the new directory ``target``; raise SnapshotError.

    Args:
        pid: of the program.
        target: is not there yet, and is there afterwards only if the snapshot is whole.
        deadline: seconds for each answer of the program.
        on_expected: called with the bytes that there are.
        on_copied: called with the bytes since its last call.
        quiet: seconds without a word of the copying process after which it is killed.
    """
    # A handler of a signal may raise an exception: not before it is sure that the draft is removed then.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        draft = SnapshotDraft.make(target)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with tempfile.TemporaryDirectory(prefix="mpsguard-snapshot-") as nowhere:
            process = _CopyingProcess(pid, draft, deadline, nowhere)
            try:
                whole = _followed(process, deadline + quiet, on_expected, on_copied)
            finally:
                process.end()
        draft.commit(target)
    except BaseException:
        draft.discard()
        raise
    finally:
        draft.close()
    return whole


def _followed(
    process: "_CopyingProcess", within: float, on_expected: Callable[[int], None], on_copied: Callable[[int], None]
) -> Whole:
    while True:
        match process.next(within):
            case Expected() as expected:
                on_expected(expected.bytes)
            case Copied() as copied:
                on_copied(copied.bytes)
            case Whole() as whole:
                return whole
            case SnapshotFailed() as failed:
                raise _ERRORS[failed.kind](failed.text)


_ERRORS: Final = {
    FailureKind.FAILED: SnapshotError,
    FailureKind.NOT_PRELOADED: NotPreloadedError,
    FailureKind.NO_ROOM: SnapshotRoomError,
}


class _CopyingProcess:
    """Owns the process and the pipe from it."""

    def __init__(self, pid: int, draft: SnapshotDraft, deadline: float, nowhere: str) -> None:
        # It finds the program's GPU by its UUID.
        environment = user_environment(os.environ, but=("CUDA_VISIBLE_DEVICES",))
        # No control daemon is there, so CUDA runs outside of MPS: the process can be killed in a copy.
        environment["CUDA_MPS_PIPE_DIRECTORY"] = nowhere
        try:
            self._process = HelperProcess(
                module_command(MODULE, str(pid), str(deadline), str(draft.parent), draft.name),
                environment,
                fds=(draft.parent,),
                stdout=subprocess.PIPE,
                stderr=None,
            )
        except OSError as error:
            raise SnapshotError(f"the copying process cannot be started: {error.strerror}") from None
        self._words = self._process.output.fileno()
        self._heard = b""

    def next(self, within: float) -> Message:
        """Return its next message; raise SnapshotError if none comes within so many seconds."""
        ends = time.monotonic() + within
        while b"\n" not in self._heard:
            poller = select.poll()
            poller.register(self._words, select.POLLIN)
            if not poller.poll(max(ends - time.monotonic(), 0.0) * 1e3):
                raise SnapshotError(
                    f"the copying process did nothing for {within:g} s: a driver call or the disk hangs"
                )
            data = os.read(self._words, _MOST_LINE)
            if not data:
                raise SnapshotError(f"the copying process ended with status {self._status()}")
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            return messages.decode(line)
        except msgspec.DecodeError as error:
            raise SnapshotError(f"the copying process does not follow its protocol: {error}") from None

    def end(self) -> None:
        """End it at once; a process that hangs in the driver is left to the kernel."""
        self._process.output.close()
        self._process.kill()
        self._process.wait(_DYING)

    def _status(self) -> int | str:
        status = self._process.wait(_ENDING)
        return "unknown" if status is None else status
