"""Pids that are given away before and after a fault of their owners, and what the guard's sensor says of them."""

from __future__ import annotations

from tests.vm.machine import Run
from tests.vm.sources import Kernel
from tests.vm.watched import boot_watched
from tests.vm.workshop import Modules

DEADLINE_S = 900.0
DEADLINE_A_PID_S = 1.5
KINDS = 3
"""Of what an owner is when its pid goes; a fault of the second is proof, and it names that owner."""


def give_away(kernel: Kernel, modules: Modules, pids: int) -> Run:
    """So many pids, one after the other, in one machine."""
    deadline = DEADLINE_S + pids * DEADLINE_A_PID_S
    return boot_watched(kernel, modules, "recycler", f"recycled.py {pids}", deadline_s=deadline)


def proofs(pids: int) -> int:
    """How many of the faults of such a run have a client of the guard as their owner."""
    return (pids + 1) // KINDS
