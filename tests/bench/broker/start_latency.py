"""What the guard costs a client that starts: time from before cuInit to its first kernel done."""

from collections.abc import Iterator
from statistics import median
from typing import Final, NamedTuple

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.programs import Work
from tests.bench.core.statistics import alternating, differences

BAR_MS: Final = 3.0
PAIRS, QUICK_PAIRS = 200, 6


class _Start(NamedTuple):
    """Milliseconds from the beginning of cuInit."""

    init: float
    first_kernel: float


def measure(bench: Bench) -> Iterator[Finding]:
    """Start clients in pairs, one through each, in alternating order.

    Both daemons live all the time with a warm server: two servers on one GPU disturb each other only when both have
    work, and only one client runs at a time.
    """
    ours: list[_Start] = []
    theirs: list[_Start] = []
    with bench.stock() as stock, bench.guard() as guard:
        bench.warm_up(stock)
        bench.warm_up(guard)
        for order in alternating(bench.runs(PAIRS, QUICK_PAIRS)):
            for through_guard in order:
                (ours if through_guard else theirs).append(_one(bench, guard if through_guard else stock))
    added = differences([start.first_kernel for start in ours], [start.first_kernel for start in theirs])
    # Of all that a client says to the daemon, most is said in cuInit, which takes a tenth of the time and varies less.
    yield sampled(
        "cuInit, added by the guard (paired differences)",
        differences([start.init for start in ours], [start.init for start in theirs]),
        unit="ms",
        bar="reported",
        holds=True,
    )
    yield sampled(
        "cuInit to first kernel, added by the guard (paired differences)",
        added,
        unit="ms",
        bar=f"median <= {BAR_MS:g} ms",
        holds=median(added) <= BAR_MS,
    )
    # The same claim seen from the two medians.
    through, stock_ms = [start.first_kernel for start in ours], [start.first_kernel for start in theirs]
    yield sampled(
        "cuInit to first kernel",
        through,
        unit="ms",
        bar=f"<= stock + {BAR_MS:g} ms",
        holds=median(through) <= median(stock_ms) + BAR_MS,
        peer=stock_ms,
    )


def _one(bench: Bench, target: Target) -> _Start:
    with Clients() as clients:
        outcome = clients.start(bench.programs.worker(Work(seconds=0)), target.pipe_directory, target.name).finish()
    if not outcome.ok:
        raise SuiteError(outcome.describe())
    return _Start(
        init=outcome.between("init_begin", "init_end") * 1000,
        first_kernel=outcome.between("init_begin", "first_kernel") * 1000,
    )


MEASUREMENT: Final = Measurement("start_latency", "start of a client through the guard against stock, paired", measure)
