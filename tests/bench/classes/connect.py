"""What a class costs a client that connects: paired against a guard without classes, and 48 clients at once."""

from collections.abc import Iterator
from statistics import median
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, all_of, sampled
from tests.bench.core.guard import Guard, Options
from tests.bench.core.programs import Work
from tests.bench.core.statistics import alternating, differences

PAIRS, QUICK_PAIRS = 60, 3
BAR_MS: Final = 5.0
CLIENTS, QUICK_CLIENTS = 48, 6
ALL_IN_MS: Final = 1500.0
ROUNDS, QUICK_ROUNDS = 2, 1
CLASSES: Final = {"all": 'default = true, sm_share = 80, priority = "below_normal", memory_limit = { 0 = "8G" }'}
"""Every lever that there is, of every client."""


def measure(bench: Bench) -> Iterator[Finding]:
    """Clients one at a time, in pairs."""
    with_classes: list[float] = []
    without: list[float] = []
    with bench.guard() as plain, bench.guard(options=Options(classes=CLASSES)) as guard:
        bench.warm_up(plain)
        bench.warm_up(guard)
        for order in alternating(bench.runs(PAIRS, QUICK_PAIRS)):
            for classed in order:
                (with_classes if classed else without).append(_one(bench, guard if classed else plain))
    added = differences(with_classes, without)
    yield sampled(
        "cuInit of a client with share, priority and memory limit, over a guard without classes (paired differences)",
        added,
        unit="ms",
        bar=f"median <= {BAR_MS:g} ms",
        holds=median(added) <= BAR_MS,
    )


def _one(bench: Bench, target: Target) -> float:
    with Clients() as clients:
        outcome = clients.start(bench.programs.worker(Work(seconds=0)), target.pipe_directory, target.name).finish()
    if not outcome.ok:
        raise SuiteError(outcome.describe())
    return outcome.between("init_begin", "init_end") * 1000


def together(bench: Bench) -> Iterator[Finding]:
    """As many clients as a GPU may have, all started at the same moment."""
    count = bench.runs(CLIENTS, QUICK_CLIENTS)
    ours: list[float] = []
    theirs: list[float] = []
    applied = 0
    with bench.guard() as plain, bench.guard(options=Options(classes=CLASSES)) as guard:
        bench.warm_up(plain)
        bench.warm_up(guard)
        for _ in range(bench.runs(ROUNDS, QUICK_ROUNDS)):
            theirs.append(_all_in(bench, plain, count)[0])
            took, classed = _all_in(bench, guard, count)
            ours.append(took)
            applied += classed
        missed = len(guard.classes_not_applied())
    yield sampled(
        f"{count} clients at once, each with share, priority and memory limit: first cuInit begun to last one over",
        ours,
        unit="ms",
        bar=f"median <= {ALL_IN_MS:g} ms",
        holds=median(ours) <= ALL_IN_MS,
        peer=theirs,
        peer_name="guard without classes",
    )
    title = f"of {count} clients at once, those that have what their class gives"
    yield all_of(title, applied - missed, count * len(ours), "clients")


def _all_in(bench: Bench, guard: Guard, count: int) -> tuple[float, int]:
    """Start that many; the ms until all are in, and how many are of a class."""
    worker = bench.programs.worker(Work(seconds=0, controlled=True, blocking=True))
    with Clients() as clients:
        started = [clients.start(worker, guard.pipe_directory, f"client-{number}") for number in range(count)]
        ends = [client.wait_for("init_end").monotonic for client in started]
        begins = [client.wait_for("init_begin").monotonic for client in started]
        for client in started:
            client.wait_for("first_kernel")
        pids = {client.pid for client in started}
        classed = sum(each.service_class is not None for each in guard.clients() if each.process.pid in pids)
        for client in started:
            client.go()
        for client in started:
            client.finish()
    return (max(ends) - min(begins)) * 1000, classed


MEASUREMENT: Final = Measurement("connect", "what a class costs a client that connects, paired", measure)
TOGETHER: Final = Measurement("together", "48 clients of a class at once", together)
