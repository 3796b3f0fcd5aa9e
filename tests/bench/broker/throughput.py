"""What the guard costs clients that run: kernels finished by four clients at once, against stock in the same run."""

from collections.abc import Iterator
from statistics import median
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.programs import Work
from tests.bench.core.statistics import alternating, ratios
from tests.bench.core.throughput import throughput

BAR: Final = 0.995
CLIENTS: Final = 4
PAIRS, QUICK_PAIRS = 8, 2
SECONDS: Final = 3.0
KERNEL_STEPS: Final = 4000
"""About 0.1 ms of arithmetic a kernel: four clients keep the GPU full, and their launches still follow closely."""


def measure(bench: Bench) -> Iterator[Finding]:
    """Rates in kernels per second, pairs in alternating order, so that clocks and heat weigh on both sides alike."""
    ours: list[float] = []
    theirs: list[float] = []
    with bench.stock() as stock, bench.guard() as guard:
        throughput(bench, stock, CLIENTS, _work(0.5))  # warm: servers, clocks
        throughput(bench, guard, CLIENTS, _work(0.5))
        for order in alternating(bench.runs(PAIRS, QUICK_PAIRS)):
            for through_guard in order:
                target = guard if through_guard else stock
                (ours if through_guard else theirs).append(throughput(bench, target, CLIENTS, _work(SECONDS)))
    each = ratios(ours, theirs)
    yield sampled(
        "throughput of four clients, guard over stock (paired ratios)",
        each,
        unit="",
        bar=f"median >= {BAR}",
        holds=median(each) >= BAR,
        note="pairs: " + " ".join(f"{value:.4f}" for value in each),
    )
    yield sampled(
        "throughput of four clients",
        ours,
        unit="kernels/s",
        bar=f">= {BAR} of stock",
        holds=median(ours) >= BAR * median(theirs),
        peer=theirs,
    )


def _work(seconds: float) -> Work:
    return Work(seconds=seconds, work=KERNEL_STEPS, controlled=True)


MEASUREMENT: Final = Measurement("throughput", "a kernel loop in four clients at once against stock, paired", measure)
