"""What the guard costs a client that starts: time from before cuInit to its first kernel done."""

from collections.abc import Iterator
from statistics import median
from typing import Final, NamedTuple

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.programs import Work
from tests.bench.core.statistics import differences, median_interval

BAR_MS: Final = 3.0
ROUNDS, QUICK_ROUNDS = 150, 6
ARMS: Final = ("guard", "stock", "stock again")


class _Start(NamedTuple):
    """Milliseconds from the beginning of cuInit."""

    init: float
    context: float
    first_kernel: float


def measure(bench: Bench) -> Iterator[Finding]:
    """Start clients in rounds of three: through the guard, and twice through stock, which tells the noise of all this.

    Both daemons live all the time with a warm server: two servers on one GPU disturb each other only when both have
    work, and only one client runs at a time.
    """
    starts: dict[str, list[_Start]] = {arm: [] for arm in ARMS}
    with bench.stock() as stock, bench.guard() as guard:
        bench.warm_up(stock)
        bench.warm_up(guard)
        for number in range(bench.runs(ROUNDS, QUICK_ROUNDS)):
            first = number % len(ARMS)
            order = ARMS[first:] + ARMS[:first]
            for arm in order if number % 2 else reversed(order):
                starts[arm].append(_one(bench, guard if arm == "guard" else stock))
    ours, theirs, again = (starts[arm] for arm in ARMS)
    # Of all that a client says to the daemon, most is said in cuInit, which takes a tenth of the time and varies less.
    yield _added("cuInit, added by the guard", [each.init for each in ours], [each.init for each in theirs])
    yield _added(
        "cuInit's end to context, added by the guard",
        [each.context - each.init for each in ours],
        [each.context - each.init for each in theirs],
    )
    through, stock_ms = [each.first_kernel for each in ours], [each.first_kernel for each in theirs]
    yield _added("cuInit to first kernel, added by the guard", through, stock_ms, BAR_MS)
    yield _added("cuInit to first kernel, added by stock to itself", [each.first_kernel for each in again], stock_ms)
    # The same claim seen from the two medians.
    yield sampled(
        "cuInit to first kernel",
        through,
        unit="ms",
        bar=f"<= stock + {BAR_MS:g} ms",
        holds=median(through) <= median(stock_ms) + BAR_MS,
        peer=stock_ms,
    )


def _added(name: str, ours: list[float], theirs: list[float], bar: float | None = None) -> Finding:
    added = differences(ours, theirs)
    low, high = median_interval(added)
    return sampled(
        f"{name} (paired differences)",
        added,
        unit="ms",
        bar="reported" if bar is None else f"median <= {bar:g} ms",
        holds=bar is None or median(added) <= bar,
        note=f"median with 95 % confidence between {low:.2f} and {high:.2f} ms",
    )


def _one(bench: Bench, target: Target) -> _Start:
    with Clients() as clients:
        outcome = clients.start(bench.programs.worker(Work(seconds=0)), target.pipe_directory, target.name).finish()
    if not outcome.ok:
        raise SuiteError(outcome.describe())
    ends = (outcome.between("init_begin", event) * 1000 for event in ("init_end", "context", "first_kernel"))
    return _Start(*ends)


MEASUREMENT: Final = Measurement("start_latency", "start of a client through the guard against stock", measure)
