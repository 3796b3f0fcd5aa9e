"""Pids that are given away before and after a fault of their owners, and what the guard's sensor says of them."""

from __future__ import annotations

from tests.vm.guest_programs import SOURCES, program
from tests.vm.guests import LOAD, UNLOAD, with_modules
from tests.vm.machine import Run, boot
from tests.vm.python_archive import add_python, run
from tests.vm.sources import Kernel
from tests.vm.workshop import Modules

DEADLINE_S = 900.0
DEADLINE_A_PID_S = 1.5
KINDS = 3
"""Of what an owner is when its pid goes; a fault of the second is proof, and it names that owner."""


def give_away(kernel: Kernel, modules: Modules, pids: int) -> Run:
    """So many pids, one after the other, in one machine."""
    archive = with_modules(modules)
    archive.file("recycler", program("recycler", modules.tree))
    archive.file("recycled.py", SOURCES / "recycled.py")
    add_python(archive)
    steps = [
        *LOAD,
        f"{run('/recycled.py')} {pids} >/dev/ttyS1 2>/dev/console; S=$?",
        *UNLOAD,
        "(exit $S)",
    ]
    return boot(kernel, archive, steps, deadline_s=DEADLINE_S + pids * DEADLINE_A_PID_S)


def proofs(pids: int) -> int:
    """How many of the faults of such a run have a client of the guard as their owner."""
    return (pids + 1) // KINDS
