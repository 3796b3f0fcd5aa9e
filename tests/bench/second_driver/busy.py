"""Programs with work in flight at a neighbour's SM fault, with spare memory for epochs; and what epochs cost."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.finding import Finding
from tests.bench.isolation import preloaded
from tests.bench.isolation.loops import Arms, Rates
from tests.bench.isolation.partial import kept, skipped
from tests.bench.second_driver import cost, idle, second
from tests.bench.second_driver.programs import State
from tests.bench.second_driver.second import Mode

SPARE: Final = 8192
"""MiB: a few times what a program here has."""


@dataclass
class Study:
    """The faults first, then the rates."""

    bench: Bench
    faults: idle.Study = field(init=False)
    rates: list[Rates] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing is measured yet."""
        self.faults = idle.Study(self.bench, State.BUSY, SPARE)

    def make(self) -> None:
        """All faults; then the loops with epochs over those with a second driver alone."""
        self.faults.make()
        alone = preloaded.variables(self.bench)
        with self.bench.stock() as lane, self.bench.stock() as beside:
            self.bench.warm_up(lane)
            self.bench.warm_up(beside)
            for program in (cost.LAUNCHES, cost.TRAINING):
                if program.needs_torch and (missing := preloaded.no_torch(self.bench)):
                    self.skipped |= dict.fromkeys(program.names, missing)
                    continue
                self.rates.append(Rates(program, self.bench, Arms("with epochs", "a hot second driver alone")))
                plain, epochs = second.variables(Mode.HOT, beside), second.variables(Mode.HOT, beside, spare=SPARE)
                self.rates[-1].measure(lane, {**alone, **epochs}, {**alone, **plain})

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        yield from self.faults.rows()
        for each in self.rates:
            yield from each.rows()
        for name, why in self.skipped.items():
            yield skipped(name, why)


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "busy", "unmodified programs with work in flight at a neighbour's SM fault, and the cost of epochs", measure
)
