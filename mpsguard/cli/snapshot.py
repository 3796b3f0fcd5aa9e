"""`mpsguard-ctl snapshot`: the GPU memory of an unmodified program, for a post-mortem."""

import importlib.util
import signal
import sys
import time
from enum import IntEnum
from pathlib import Path
from types import FrameType

import click
import msgspec

from mpsguard.cli.progress import progress_bar
from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.images.snapshot.errors import FailureKind, SnapshotError
from mpsguard.linux.extras import how_to_install

_MIB = 1 << 20


class SnapshotExit(IntEnum):
    """Exit codes of `mpsguard-ctl snapshot` besides 0, 1 and 2 of `Exit`."""

    NOT_PRELOADED = 6
    NO_ROOM = 7


class SnapshotTaken(msgspec.Struct, frozen=True):
    """What --json prints."""

    directory: str
    allocations: int
    bytes: int
    skipped: int
    """Allocations that could not be copied; allocations.json says why."""
    not_included: int
    """Counted kinds of memory that the snapshot does not have; allocations.json names them."""
    seconds: float


@click.command(
    epilog="Exit codes: 0 done; 1 failed; 2 usage; 6 the program does not run under the preload; 7 no room on the disk."
)
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Directory to be made; in the place of snapshot-PID-TIME in the current one.",
)
@with_session
def snapshot(session: CliSession, pid: int, output: Path | None) -> None:
    """Copy the GPU memory of process PID, which runs under the preload, while it runs on.

    The directory has a file of NumPy for each allocation, and allocations.json, which says where each was, and what
    the snapshot does not have. Each allocation is copied at another moment: it is a consistent cut only if nothing is
    written meanwhile. The process itself cannot be had. No guard is needed. --deadline of mpsguard-ctl, before the
    command, is for each answer of the process.
    """
    if importlib.util.find_spec("numpy") is None:
        session.fail(Exit.FAILED, f"snapshot needs numpy: {how_to_install('snapshot')}")
    from mpsguard.images.snapshot import command  # noqa: PLC0415 - what the other commands need not load

    target = output if output is not None else Path(f"snapshot-{pid}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    signal.signal(signal.SIGTERM, _end)
    try:
        with progress_bar(session, f"snapshot {pid}") as bar:
            whole = command.take(pid, target, deadline=session.deadline, on_expected=bar.expect, on_copied=bar.advance)
    except SnapshotError as error:
        session.fail(_EXITS[error.kind], str(error))
    taken = SnapshotTaken(
        str(target), whole.allocations, whole.bytes, whole.skipped, whole.not_included, round(whole.seconds, 3)
    )
    if session.as_json:
        session.print_json(taken)
        return
    session.console.print(
        f"{taken.directory}: {taken.allocations} allocations, {taken.bytes // _MIB} MiB, in {taken.seconds:.3g} s; "
        f"{taken.skipped} not copied, {taken.not_included} kinds of memory not included: see allocations.json",
        markup=False,
    )


def _end(number: int, _: FrameType | None) -> None:
    """End as on Ctrl-C: the draft is removed on the way."""
    sys.exit(128 + number)


_EXITS = {
    FailureKind.FAILED: Exit.FAILED,
    FailureKind.NOT_PRELOADED: SnapshotExit.NOT_PRELOADED,
    FailureKind.NO_ROOM: SnapshotExit.NO_ROOM,
}
