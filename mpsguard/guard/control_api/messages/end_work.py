"""End the GPU work of those of some processes that are clients (for `mpsguard run`)."""

import msgspec

from mpsguard.guard.remedies.termination import Work
from mpsguard.linux.identity import ProcessKey


class Arguments(msgspec.Struct):
    """The processes, by the pids of the asker's pid namespace, and the inode of that."""

    processes: tuple[ProcessKey, ...]
    pid_namespace: int
    within: float
    """Seconds the control daemon gets."""


class WorkEnded(msgspec.Struct, frozen=True):
    """What became of one client's work; ``process`` is named as the asker named it."""

    process: ProcessKey
    work: Work
    answer: str


class EndWorkResult(msgspec.Struct, frozen=True):
    """One entry for each of the processes that is a client; the others are no clients of this guard."""

    clients: tuple[WorkEnded, ...]
