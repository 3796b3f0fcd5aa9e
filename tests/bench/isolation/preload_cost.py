"""What the preload costs: latency and memory of allocations, also in stream order, and the rates of loops, against the
same without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tests.bench import ordered_cost
from tests.bench import preload_cost as allocations
from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import client_environment
from tests.bench.core.finding import Finding
from tests.bench.isolation import loops, preloaded
from tests.bench.isolation.loops import Loops, Rates
from tests.bench.isolation.partial import kept, skipped
from tests.bench.isolation.preloaded import Served
from tests.bench.preload_cost import MIB, Comparison
from tests.bench.results.schema import Row

_ALLOCATIONS: Final = "latency of allocations under the preload"


@dataclass
class Study:
    """As clients of one guard."""

    bench: Bench
    programs: Sequence[Loops]
    with_allocations: bool
    compared: list[Comparison] = field(default_factory=list)
    ordered: list[ordered_cost.Comparison] = field(default_factory=list)
    rates: list[Rates] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    processes: int = 0
    """How many programs were run under the preload to their end."""
    served: list[Served] = field(default_factory=list)

    def make(self) -> None:
        """Allocations first, then the loops."""
        report = self.bench.root / "preload-report.txt"
        variables = preloaded.variables(self.bench, report)
        with self.bench.guard() as guard:
            self.bench.warm_up(guard)
            if self.with_allocations and self.bench.programs.simulated:
                self.skipped[_ALLOCATIONS] = "a simulated GPU has no allocations to time"
            elif self.with_allocations:
                self._allocations(guard, variables)
            for program in self.programs:
                if program.needs_torch and (missing := preloaded.no_torch(self.bench)):
                    self.skipped |= dict.fromkeys(program.names, missing)
                    continue
                self.rates.append(Rates(program, self.bench))
                self.rates[-1].measure(guard, variables)
                self.processes += self.rates[-1].crews
        if not self.bench.programs.simulated:
            self.served = preloaded.served(report)

    def _allocations(self, target: Target, variables: Mapping[str, str]) -> None:
        plain = client_environment(target.pipe_directory)
        program = preloaded.program(self.bench, "allocation_cost")
        self.compared = allocations.compare(program, plain, plain | dict(variables))
        self.processes += len(self.compared)
        for each in self.compared:
            self.bench.say(f"allocations of {each.size} bytes: {describe(each)}")
        program = preloaded.program(self.bench, "ordered_cost")
        self.ordered = ordered_cost.compare(program, plain, plain | dict(variables))
        self.processes += len(self.ordered) * ordered_cost.TURNS
        for pairs in self.ordered:
            self.bench.say(f"{pairs.size} bytes in stream order: {describe_pairs(pairs)}")

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        if self.compared:
            yield from allocation_rows(self.compared)
        if self.ordered:
            yield ordered_row(self.ordered)
        for each in self.rates:
            yield from each.rows()
        if self.served:
            yield use(self.served, self.processes)
        for name, why in self.skipped.items():
            yield skipped(name, why)


def use(served: Sequence[Served], processes: int) -> Finding:
    """Whether the preload was at work in every program that ran under it: what does nothing costs nothing."""
    at_work = sum(each.placed > 0 for each in served)
    note = "allocations served, and left to the driver: " + ", ".join(each.describe() for each in served)
    row = Row(
        name="programs under the preload whose allocations it served",
        value=at_work,
        count=processes or None,
        unit="programs",
        bar=f"{processes} of {processes}",
        holds=0 < processes == at_work == len(served),
        runs=1,
    )
    return Finding(row, note)


def allocation_rows(compared: Sequence[Comparison]) -> Iterator[Finding]:
    """The worst of the sizes that have a limit, and the memory of all of them."""
    note = "; ".join(f"{each.size} bytes: {describe(each)}" for each in compared)
    limited = [each for each in compared if each.size >= 2 * MIB]
    if limited:
        worst = max(each.allocate_ratio for each in limited)
        yield _worst_of_sizes(
            "latency of an allocation of at least 2 MiB, preload over plain",
            worst,
            f"<= {allocations.LATENCY_BAR:g}",
            holds=all(each.latency_holds for each in limited),
            note=note,
        )
    overhead = max(each.memory_overhead for each in compared)
    yield _worst_of_sizes(
        "memory taken beyond plain",
        100 * overhead,
        f"<= {100 * allocations.MEMORY_BAR:g} %",
        unit="%",
        holds=all(each.memory_holds for each in compared),
        note="; ".join(f"{each.size} bytes: {100 * each.memory_overhead:.2f} %" for each in compared),
    )


def ordered_row(compared: Sequence[ordered_cost.Comparison]) -> Finding:
    """The worst of the sizes that have a limit; what synchronisations cost beside it."""
    worst = max(each.ratio for each in compared if each.size >= 2 * MIB)
    return _worst_of_sizes(
        "an allocation of at least 2 MiB in stream order with its free, preload over plain",
        worst,
        f"<= {ordered_cost.LATENCY_BAR:g}",
        holds=all(each.holds for each in compared),
        note="; ".join(f"{each.size} bytes: {describe_pairs(each)}" for each in compared),
    )


def _worst_of_sizes(what: str, worst: float, bar: str, *, holds: bool, note: str, unit: str = "") -> Finding:
    value = float(f"{worst:.4g}")
    row = Row(name=f"{what}, the worst size", value=value, unit=unit, bar=bar, holds=holds, runs=1)
    return Finding(row, note, samples=(value,))


def describe_pairs(each: ordered_cost.Comparison) -> str:
    """One size in a few words."""
    ours, plain = each.preload, each.plain
    return (
        f"pair {1e6 * ours.pair:.2f} us, plain {1e6 * plain.pair:.2f} us ({each.ratio:.2f}); with a synchronisation,"
        f" memory kept, {1e6 * ours.kept:.2f} us, plain {1e6 * plain.kept:.2f} us; memory given back"
        f" {1e6 * ours.released:.0f} us, plain {1e6 * plain.released:.0f} us; then still taken"
        f" {ours.left >> 20} MiB, plain {plain.left >> 20} MiB"
    )


def describe(each: Comparison) -> str:
    """One size in a few words."""
    return (
        f"allocate {1e6 * each.preload.allocate:.0f} us, plain {1e6 * each.plain.allocate:.0f} us"
        f" ({each.allocate_ratio:.2f}); free {1e6 * each.preload.free:.0f} us,"
        f" plain {1e6 * each.plain.free:.0f} us ({each.free_ratio:.2f})"
    )


def measure(programs: Sequence[Loops], with_allocations: bool, bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    study = Study(bench, programs, with_allocations)
    yield from kept(study.make, study.rows)


MEASUREMENTS: Final = (
    Measurement(
        "preload_cost",
        "allocations and loops that keep the GPU busy under the preload against plain, paired",
        partial(measure, (loops.KERNELS, loops.BUSY), True),
    ),
    Measurement(
        "preload_short",
        "loops of steps shorter than Python takes to launch them under the preload against plain, paired",
        partial(measure, (loops.SHORT,), False),
    ),
)
