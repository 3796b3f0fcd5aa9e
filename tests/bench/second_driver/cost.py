"""What the second driver costs while there is no fault: rates of loops with it over those under the preload alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.finding import Finding
from tests.bench.isolation import preloaded
from tests.bench.isolation.loops import Arms, Loops, Rates
from tests.bench.isolation.partial import kept, skipped
from tests.bench.second_driver import second
from tests.bench.second_driver.second import Mode

LAUNCHES: Final = Loops(
    ("loop of kernels of 20 us",),
    lambda bench, work: bench.programs.worker(work),
    crews=10,
    seconds=0.2,
    needs_torch=False,
    steps=200,
)
"""Launch and wait, over and over: the shorter the kernel, the more counts what is done for each launch. Of three crews
the same over the same was 0.93 to 1.07."""
DECODE: Final = Loops(
    ("PyTorch eager inference, steps shorter than Python takes to launch them",),
    lambda bench, work: preloaded.torch_loops(bench, ("infer-small",), work),
    crews=10,
    seconds=0.1,
)
"""As a language model decodes for one user: the processor's work is all that counts."""
TRAINING: Final = Loops(
    ("PyTorch training loop",),
    lambda bench, work: preloaded.torch_loops(bench, ("train",), work),
    crews=3,
    seconds=0.2,
)


class Way(NamedTuple):
    """In which a program has a second driver."""

    name: str
    mode: Mode
    spare: int | None = None


WAYS: Final = (
    *(Way(f"with a {mode} second driver", mode) for mode in Mode),
    Way("with a hot second driver and epochs", Mode.HOT, second.SPARE),
)


@dataclass
class Study:
    """As clients of one stock daemon; the second context of hot programs is on another one."""

    bench: Bench
    rates: list[Rates] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def make(self) -> None:
        """All loops in each way; with --quick only hot ones, which do all that cold does."""
        ways = [way for way in WAYS if way.mode is Mode.HOT] if self.bench.quick else WAYS
        alone = preloaded.variables(self.bench)
        with self.bench.stock() as lane, self.bench.stock() as beside:
            self.bench.warm_up(lane)
            self.bench.warm_up(beside)
            for program in (LAUNCHES, DECODE, TRAINING):
                if program.needs_torch and (missing := preloaded.no_torch(self.bench)):
                    self.skipped |= dict.fromkeys(program.names, missing)
                    continue
                for way in ways:
                    self.rates.append(Rates(program, self.bench, Arms(way.name, "the preload alone")))
                    ours = second.variables(way.mode, beside, spare=way.spare)
                    self.rates[-1].measure(lane, {**alone, **ours}, alone)

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        for each in self.rates:
            yield from each.rows()
        for name, why in self.skipped.items():
            yield skipped(name, why)


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "cost", "loops without a fault, with a second driver over the preload alone, paired", measure
)
