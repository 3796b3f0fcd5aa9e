"""What the preload costs an unmodified program: time of allocations, and memory beyond what was asked for.

Plain functions, for a suite to call with the environments it compares. `fault_injection/cuda/allocation_cost.cu` is
the program that measures.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.bench.core.errors import SuiteError

LATENCY_BAR: Final = 2.0
"""Median latency over plain, for allocations of at least 2 MiB."""
MEMORY_BAR: Final = 0.02
"""Memory taken beyond what plain allocation takes, as a share of it."""
MIB: Final = 1 << 20
SIZES: Final = (4096, 256 << 10, 2 * MIB, 20 * MIB, 256 * MIB)
DEADLINE: Final = 300.0


class Cost(msgspec.Struct, frozen=True):
    """The program's event ``cost``: seconds a call, and bytes."""

    allocate: float
    free: float
    allocate_worst: float
    free_worst: float
    asked: int
    taken: int
    left: int


class Comparison(msgspec.Struct, frozen=True):
    """One size, plainly and under the preload."""

    size: int
    plain: Cost
    preload: Cost

    @property
    def allocate_ratio(self) -> float:
        """Median latency of an allocation over plain."""
        return self.preload.allocate / self.plain.allocate

    @property
    def free_ratio(self) -> float:
        """Median latency of a free over plain."""
        return self.preload.free / self.plain.free

    @property
    def memory_overhead(self) -> float:
        """Memory taken beyond plain, as a share of what plain takes; 0 if plain took none that could be seen."""
        return self.preload.taken / self.plain.taken - 1 if self.plain.taken else 0.0

    @property
    def latency_holds(self) -> bool:
        """Whether the bar holds; below 2 MiB there is none."""
        return self.size < 2 * MIB or self.allocate_ratio <= LATENCY_BAR

    @property
    def memory_holds(self) -> bool:
        """Whether the bar holds."""
        return self.memory_overhead <= MEMORY_BAR


def event(name: str, program: Path, environment: Mapping[str, str], *arguments: int) -> Mapping[str, object]:
    """Run a program once: its last event, which must be the one of that name; SuiteError if it fails."""
    words = [str(each) for each in arguments]
    done = subprocess.run(
        [str(program), *words],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    events: list[dict[str, object]] = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or not events or events[-1].get("event") != name:
        said = f"{done.stdout}{done.stderr}".strip()
        raise SuiteError(f"{program.name} {' '.join(words)}: exit {done.returncode}, {said}")
    return events[-1]


def cost(program: Path, environment: Mapping[str, str], size: int, count: int, rounds: int = 5) -> Cost:
    """Run the program once; SuiteError if it fails."""
    return msgspec.convert(event("cost", program, environment, size, count, rounds), Cost)


def compare(
    program: Path, plain: Mapping[str, str], preload: Mapping[str, str], *, held: int = 1 << 30, most: int = 200
) -> list[Comparison]:
    """Every size in both environments, one after the other; about ``held`` bytes in up to ``most`` allocations each."""
    found = []
    for size in SIZES:
        count = max(1, min(most, held // size))
        found.append(Comparison(size, cost(program, plain, size, count), cost(program, preload, size, count)))
    return found
