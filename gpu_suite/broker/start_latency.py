"""What the guard costs a client that starts: time from before cuInit to its first kernel done."""

from collections.abc import Iterator
from statistics import median
from typing import Final

from gpu_suite.core.bench import Bench, Measurement, Target
from gpu_suite.core.client import Clients
from gpu_suite.core.errors import SuiteError
from gpu_suite.core.finding import Finding, sampled
from gpu_suite.core.programs import Work
from gpu_suite.core.statistics import alternating, differences

BAR_MS: Final = 3.0
PAIRS, QUICK_PAIRS = 100, 6


def measure(bench: Bench) -> Iterator[Finding]:
    """Start clients in pairs, one through each, in alternating order.

    Both daemons live all the time with a warm server: two servers on one GPU disturb each other only when both have
    work, and only one client runs at a time.
    """
    ours: list[float] = []
    theirs: list[float] = []
    with bench.stock() as stock, bench.guard() as guard:
        bench.warm_up(stock)
        bench.warm_up(guard)
        for order in alternating(bench.runs(PAIRS, QUICK_PAIRS)):
            for through_guard in order:
                (ours if through_guard else theirs).append(_one(bench, guard if through_guard else stock))
    added = differences(ours, theirs)
    yield sampled(
        "cuInit to first kernel, added by the guard (paired differences)",
        added,
        unit="ms",
        bar=f"median <= {BAR_MS:g} ms",
        holds=median(added) <= BAR_MS,
    )
    # The same claim seen from the two medians.
    yield sampled(
        "cuInit to first kernel",
        ours,
        unit="ms",
        bar=f"<= stock + {BAR_MS:g} ms",
        holds=median(ours) <= median(theirs) + BAR_MS,
        peer=theirs,
    )


def _one(bench: Bench, target: Target) -> float:
    with Clients() as clients:
        outcome = clients.start(bench.programs.worker(Work(seconds=0)), target.pipe_directory, target.name).finish()
    if not outcome.ok:
        raise SuiteError(outcome.describe())
    return outcome.between("init_begin", "first_kernel") * 1000


MEASUREMENT: Final = Measurement("start_latency", "start of a client through the guard against stock, paired", measure)
