"""What takes long on the patched module: an overrun of a GiB, a million wild pointers, three offenders at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vm import workshop
from tests.vm.guests import run_program
from tests.vm.machine import Run
from tests.vm.sources import Kernel

OVERRUN_MIB, POINTERS, ACCESSES = 1024, 1_000_000, 20_000
PARTS = 3
DEADLINE_S = 1800.0
MOST_SINKS = 600
OVERRUN_MS = 60_000
NAMED_MS = 1000
LEAST_ROUNDS = 0.7
"""Of those beside three clients that make as many accesses to memory of their own."""


@dataclass(frozen=True)
class Campaign:
    """What each part said of itself."""

    run: Run
    overrun: dict[str, Any]
    pointers: dict[str, Any]
    offenders: dict[str, Any]

    @property
    def share(self) -> float:
        """Rounds of the innocent client, of those that it makes beside three that do nothing wrong."""
        return float(self.offenders["rounds"] / self.offenders["rounds_calm"])


def run_campaign(kernel: Kernel, tree: Path) -> Campaign:
    """Run all three parts in one machine; raises RuntimeError if one of them gave no result."""
    modules = workshop.build(tree, kernel, patched=True)
    arguments = map(str, (OVERRUN_MIB, POINTERS, ACCESSES))
    run = run_program(kernel, modules, "campaign", *arguments, deadline_s=DEADLINE_S)
    if len(run.lines) != PARTS:
        raise RuntimeError(f"status {run.status}, {run.lines}: {run.console[-2000:]}")
    return Campaign(run, *run.lines)
