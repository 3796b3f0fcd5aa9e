"""Two GPUs under one guard: what happens on the one is nothing to the other."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, all_of, none_of
from tests.bench.core.gpus import uuids
from tests.bench.core.guard import Options
from tests.bench.core.programs import Work
from tests.bench.failover.latency import MMU, SM

INNOCENTS: Final = 3
FAULTS: Final = (*SM, *MMU)
ROUNDS, QUICK_ROUNDS = 16, 4


def measure(bench: Bench) -> Iterator[Finding]:
    """Clients at work on the second GPU, while on the first one client after the other faults."""
    cards = [] if bench.programs.simulated else uuids()
    if len(cards) < 2:
        raise SuiteError("this machine has fewer than two GPUs")
    rounds = bench.runs(ROUNDS, QUICK_ROUNDS)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(bench.guard(options=Options(standby=True, gpus=(uuid,)))) for uuid in cards[:2]
        )
        clients = stack.enter_context(Clients())
        innocents = bench.workers(clients, second, INNOCENTS, Work(seconds=600, controlled=True))
        for client in innocents:
            client.go()
        for number in range(rounds):
            name = FAULTS[number % len(FAULTS)]
            with Clients() as culprits:
                work = Work(seconds=5, controlled=True, fault=name, fault_at=0.05)
                culprit = bench.workers(culprits, first, 1, work)[0]
                culprit.go()
                culprit.finish()
        seen = len(first.began())
        for client in innocents:
            client.stop()
        outcomes = [client.finish() for client in innocents]
    yield all_of("incidents of the first GPU, one for each fault", min(seen, rounds), rounds, "incidents")
    lost = [outcome.describe() for outcome in outcomes if not outcome.ok]
    gap = max((event.number("max_gap") for o in outcomes if (event := o.find("finished"))), default=0.0)
    yield none_of(
        f"clients of the second GPU that died of {rounds} faults on the first",
        len(lost),
        len(outcomes),
        "clients",
        note="; ".join([f"longest gap between two kernels {gap * 1e3:.1f} ms", *lost]),
    )


MEASUREMENT: Final = Measurement("two_gpus", "a fault on one GPU, clients on another", measure)
