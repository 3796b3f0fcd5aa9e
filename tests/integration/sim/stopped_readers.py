"""A guard's readers of /proc entries that stand still: it does not know its new clients for a second."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mpsguard.linux.processes import process_tree
from mpsguard.linux.processes.process import ProcessHandle


@contextmanager
def stopped_readers(guard: int) -> Iterator[None]:
    """Stop the readers of the guard with this pid, of which there is one.

    A read lasts until its deadline, which ends its reader; one that stands still would outlive the guard.
    """
    readers = [
        each.pid
        for each in process_tree.descendants(guard)
        if b"process_reader_child" in Path(f"/proc/{each.pid}/cmdline").read_bytes()
    ]
    assert readers
    with ExitStack() as undo:
        for reader in readers:
            handle = undo.enter_context(ProcessHandle.open(reader))
            undo.callback(_go_on, handle)
            handle.signal(signal.SIGSTOP)
        yield


def _go_on(process: ProcessHandle) -> None:
    with suppress(ProcessLookupError):
        process.signal(signal.SIGCONT)
