"""The copying process: it has CUDA and the program's descriptors, so it is one that can be killed at any time."""

import os
import sys

from mpsguard.images.snapshot import messages
from mpsguard.images.snapshot.copying import SnapshotRun
from mpsguard.images.snapshot.draft import SnapshotDraft
from mpsguard.images.snapshot.errors import FailureKind, SnapshotError
from mpsguard.images.snapshot.messages import Message, SnapshotFailed
from mpsguard.images.snapshot.program import PreloadedProgram


def main(pid: int, deadline: float, parent: int, draft_name: str) -> int:
    """Take a snapshot; return the exit status.

    Args:
        pid: of the program.
        deadline: seconds for each of its answers.
        parent: descriptor of the directory with the draft.
        draft_name: of the draft in it.
    """
    draft = SnapshotDraft(parent, draft_name)
    try:
        try:
            with PreloadedProgram(pid) as program:
                SnapshotRun(program, draft, deadline, _tell).take()
        except SnapshotError as error:
            draft.discard()
            _tell(SnapshotFailed(error.kind, str(error)))
        except Exception as error:
            draft.discard()
            _tell(SnapshotFailed(FailureKind.FAILED, f"{type(error).__name__}: {error}"))
    except BrokenPipeError:
        # The command has ended, by a signal: its snapshot is of no use to it any more.
        draft.discard()
        return 1
    return 0


def _tell(message: Message) -> None:
    line = messages.encode(message)
    assert os.write(sys.stdout.fileno(), line) == len(line)
