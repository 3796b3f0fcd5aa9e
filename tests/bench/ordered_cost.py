"""What the preload costs a program that allocates and frees in stream order: time of a pair of calls.

`fault_injection/cuda/ordered_cost.cu` is the program that measures. A driver's pool hands out again what was just freed
in the same stream, within a microsecond; at a synchronisation it gives memory back unless its release threshold says
otherwise, and the next allocation has to get it anew.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from tests.bench.preload_cost import MIB, event

LATENCY_BAR: Final = 2.0
"""Of a pair over plain, for at least 2 MiB, where no synchronisation comes in between."""
SIZES: Final = (4096, 256 << 10, 2 * MIB, 20 * MIB, 256 * MIB)
PAIRS: Final = 2000
ROUNDS: Final = 9
TURNS: Final = 3
"""Processes in each environment: how fast one goes through so short a piece of work depends on more than the work."""


class Pairs(msgspec.Struct, frozen=True):
    """The program's event ``ordered``: median seconds of an allocation with its free."""

    pair: float
    """One pair after the other in one stream."""
    kept: float
    """With a synchronisation of the stream after each, under a threshold that keeps all."""
    released: float
    """The same under the default threshold, which keeps nothing."""
    left: int
    """Bytes that are still taken after a synchronisation under the default threshold."""


class Comparison(msgspec.Struct, frozen=True):
    """One size, plainly and under the preload."""

    size: int
    plain: Pairs
    preload: Pairs

    @property
    def ratio(self) -> float:
        """A pair over a plain one."""
        return self.preload.pair / self.plain.pair

    @property
    def holds(self) -> bool:
        """Whether the bar holds; below 2 MiB there is none."""
        return self.size < 2 * MIB or self.ratio <= LATENCY_BAR


def compare(program: Path, plain: Mapping[str, str], preload: Mapping[str, str]) -> list[Comparison]:
    """Every size in both environments, in turn, `TURNS` times each."""
    return [_compared(program, size, plain, preload) for size in SIZES]


def _compared(program: Path, size: int, *environments: Mapping[str, str]) -> Comparison:
    runs: list[list[Pairs]] = [[] for _ in environments]
    for _ in range(TURNS):
        for found, environment in zip(runs, environments, strict=True):
            made = event("ordered", program, environment, size, PAIRS, ROUNDS)
            found.append(msgspec.convert(made, Pairs))
    return Comparison(size, *(_median(found) for found in runs))


def _median(found: Sequence[Pairs]) -> Pairs:
    return Pairs(
        pair=median(each.pair for each in found),
        kept=median(each.kept for each in found),
        released=median(each.released for each in found),
        left=max(each.left for each in found),
    )
