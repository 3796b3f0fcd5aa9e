"""Clients that start while the MPS server recovers from a fault: error 807 from stock, a short wait from the guard."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DIED, MPS_SERVER_NOT_READY, Outcome
from tests.bench.core.finding import Finding, none_of
from tests.bench.core.programs import Work
from tests.bench.results.schema import Peer

INNOCENTS: Final = 3
REPETITIONS, QUICK_REPETITIONS = 3, 1
INTERVAL: Final = 0.05
WINDOW: Final = 1.0
"""Seconds after the fault in which clients start, one each INTERVAL."""
FAULT_SHOWS: Final = 5.0
"""Seconds after the trap within which a client must have died of it; 0.4 s were seen."""


@dataclass
class Fates:
    """How the late clients of all repetitions ended."""

    doomed: list[Outcome] = field(default_factory=list)
    """Those that started between the trap and the first death: they joined a server that was lost, unnoticed."""
    late: list[Outcome] = field(default_factory=list)
    """Those that started in the second after the first death."""

    @property
    def all(self) -> list[Outcome]:
        """All of them."""
        return [*self.doomed, *self.late]

    @property
    def failures(self) -> list[Outcome]:
        """The late ones that did not finish."""
        return [outcome for outcome in self.late if not outcome.ok]

    @property
    def refused(self) -> int:
        """How many of all met 807."""
        return sum(outcome.code == MPS_SERVER_NOT_READY for outcome in self.all)

    def describe(self) -> str:
        """One line: what became of those that came too early, and how long the late ones took."""
        waits = [outcome.between("init_begin", "first_kernel") for outcome in self.late if outcome.ok]
        lost = sum(not outcome.ok for outcome in self.doomed)
        return (
            f"{len(self.doomed)} started before the fault showed, {lost} of them died of it; "
            f"longest start of a late client {max(waits, default=0.0):.2f} s; "
            f"{'; '.join(outcome.describe() for outcome in self.failures[:3])}"
        )


def measure(bench: Bench) -> Iterator[Finding]:
    """A trap among three innocents (they die, with and without the guard: that is MPS), then a client each 50 ms."""
    stock_fates, guard_fates = Fates(), Fates()
    repetitions = bench.runs(REPETITIONS, QUICK_REPETITIONS)
    for _ in range(repetitions):
        with bench.stock() as stock:
            _one(bench, stock, stock_fates)
        with bench.guard() as guard:
            _one(bench, guard, guard_fates)
    yield none_of(
        "clients that fail in the second after a server fault",
        len(guard_fates.failures),
        len(guard_fates.late),
        "clients",
        runs=repetitions,
        note=f"guard: {guard_fates.describe()}",
        peer=Peer(name="stock", value=len(stock_fates.failures), count=len(stock_fates.late) or None),
    )
    yield none_of(
        "clients refused with error 807 after a trap",
        guard_fates.refused,
        len(guard_fates.all),
        "clients",
        runs=repetitions,
        note=f"stock: {stock_fates.describe()}",
        peer=Peer(name="stock", value=stock_fates.refused, count=len(stock_fates.all) or None),
    )


def _one(bench: Bench, target: Target, fates: Fates) -> None:
    with Clients() as clients:
        crowd = bench.workers(clients, target, INNOCENTS, Work(seconds=60, controlled=True))
        culprit = Work(seconds=60, controlled=True, fault="trap", fault_at=0.3)
        crowd += bench.workers(clients, target, 1, culprit)
        for client in crowd:
            client.go()
        crowd[-1].wait_for("fault")
        started = _start_late_clients(bench, target, clients, crowd)
        death = _first_death(crowd)
        assert death is not None
        for client in started:
            outcome = client.finish()
            begin = outcome.find("init_begin")
            if begin is None:
                raise SuiteError(outcome.describe())
            (fates.late if begin.monotonic > death else fates.doomed).append(outcome)


def _start_late_clients(bench: Bench, target: Target, clients: Clients, crowd: Sequence[Client]) -> list[Client]:
    """Start a client each INTERVAL from now until WINDOW after the first death, and one after it in any case."""
    argv = bench.programs.worker(Work(seconds=0))
    started: list[Client] = []
    begin = time.monotonic()
    death: float | None = None
    while death is None or time.monotonic() < death + WINDOW:
        death = _first_death(crowd)
        if death is None and time.monotonic() > begin + FAULT_SHOWS:
            raise SuiteError(f"{target.name}: nobody died within {FAULT_SHOWS:g} s of the trap")
        started.append(clients.start(argv, target.pipe_directory, f"{target.name}-late-{len(started)}"))
        time.sleep(max(0.0, begin + len(started) * INTERVAL - time.monotonic()))  # a schedule, not a wait
    return started


def _first_death(crowd: Sequence[Client]) -> float | None:
    """When the first of them saw the fault (monotonic seconds)."""
    return min((event.monotonic for client in crowd if (event := client.seen(DIED))), default=None)


MEASUREMENT: Final = Measurement("fault_parking", "clients that start while the server recovers from a trap", measure)
