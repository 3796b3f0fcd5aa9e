"""Clients that come while a lane recovers: after a lone client's kill, and beside a fault on another GPU of the domain.

Seen on two H100s (580.159.04): the first newcomer after a lone client with managed memory was killed with work in
flight got error 46 (cudaErrorDevicesUnavailable), and so did one that came 3 s after a memory fault on the other GPU
of its domain. Behind the guard they are to wait, and to be served.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DEVICES_UNAVAILABLE, Outcome
from tests.bench.core.finding import Finding, none_of
from tests.bench.core.gpus import uuids
from tests.bench.core.guard import Guard, Options
from tests.bench.core.programs import Work
from tests.bench.results.schema import Peer

TRIES, QUICK_TRIES = 20, 2
_STOCK_TRIES, _QUICK_STOCK_TRIES = 5, 1
AFTER_A_KILL: Final = (0.0, 0.05, 0.3, 1.0)
"""Seconds from a lone client's end to the start of each newcomer; 46 was seen within 0.3 s."""
AFTER_A_FAULT: Final = (0.0, 0.2, 1.0, 2.0, 3.0, 4.0)
"""Seconds from a fault on one GPU to the start of each newcomer on the other one; 46 was seen after 3 s."""
_TOLD: Final = 1.0
"""Seconds after a fault within which a simulated server's log has told of it, and the guard has read that."""
_IN_FLIGHT: Final = 2.0
"""Seconds of the kernel that a killed client leaves."""
_READY: Final = 30.0
_PATIENCE: Final = 75.0
"""Seconds for a newcomer: `park_deadline` and its start."""
_RECOVERED: Final = 20.0
_EARLY: Final = 5.0
"""Seconds for which an innocent beside a fault is let run; newcomers may have to wait for its end."""


@dataclass
class Newcomers:
    """How the newcomers of all tries of one target ended."""

    tries: int = 0
    outcomes: list[tuple[float, Outcome]] = field(default_factory=list)
    """With the seconds after which each was started."""
    errors: list[str] = field(default_factory=list)

    @property
    def refused(self) -> list[tuple[float, Outcome]]:
        """Those that were not served."""
        return [(after, outcome) for after, outcome in self.outcomes if not outcome.ok]

    def describe(self) -> str:
        """One line: how many met 46, how long the others took, and the first that were refused."""
        unavailable = sum(outcome.code == DEVICES_UNAVAILABLE for _, outcome in self.outcomes)
        waits = [outcome.between("start", "first_kernel") for _, outcome in self.outcomes if outcome.ok]
        shown = [f"after {after:g} s: {outcome.describe()}" for after, outcome in self.refused[:3]]
        slowest = f"slowest start {max(waits, default=0.0):.2f} s"
        return "; ".join([f"error 46: {unavailable}", slowest, *shown, *self.errors[:3]])


def measure(bench: Bench) -> Iterator[Finding]:
    """Both ways, each first under the guard and then under stock MPS."""
    guarded, stock = Newcomers(), Newcomers()
    with bench.guard() as guard:
        _repeat(bench, guard, bench.runs(TRIES, QUICK_TRIES), guarded, _after_a_kill)
        _note_states(bench, guard)
    with bench.stock() as daemon:
        _repeat(bench, daemon, bench.runs(_STOCK_TRIES, _QUICK_STOCK_TRIES), stock, _after_a_kill)
    yield _finding("newcomers refused after a lone client with managed memory was killed", guarded, stock)
    cards = ["0", "1"] if bench.programs.simulated else uuids()
    if len(cards) < 2:
        bench.say("newcomers beside a fault on another GPU: needs a machine with two GPUs")
        return
    guarded, stock = Newcomers(), Newcomers()
    options = Options(gpus=() if bench.programs.simulated else tuple(cards[:2]))
    with bench.guard(options=options) as guard:
        _repeat(bench, guard, bench.runs(TRIES, QUICK_TRIES), guarded, _beside_a_fault)
        _note_states(bench, guard)
    with bench.stock() as daemon:
        _repeat(bench, daemon, bench.runs(_STOCK_TRIES, _QUICK_STOCK_TRIES), stock, _beside_a_fault)
    yield _finding("newcomers refused beside a memory fault on another GPU of the domain", guarded, stock)


@dataclass
class _Try:
    """One try, and the means for it."""

    bench: Bench
    target: Target
    clients: Clients
    number: int

    def start(self, work: Work, label: str, variables: Mapping[str, str] | None = None) -> Client:
        """Start a worker."""
        program = self.bench.programs.worker(work)
        return self.clients.start(program, self.target.pipe_directory, f"{self.target.name}-{label}", variables)

    def come(self, began: float, schedule: tuple[float, ...], variables: Mapping[str, str]) -> list[Client]:
        """Start a newcomer at each of these seconds after ``began``."""
        started = []
        for after in schedule:
            time.sleep(max(0.0, began + after - time.monotonic()))  # a schedule, not a wait
            started.append(self.start(Work(seconds=0), f"newcomer-{after:g}", variables))
        return started


_Make = Callable[[_Try], list[tuple[float, Outcome]]]
"""Makes a try, and returns how its newcomers ended."""


def _after_a_kill(this: _Try) -> list[tuple[float, Outcome]]:
    """A client alone, killed with a kernel of its own in flight."""
    work = Work(seconds=60, controlled=True, managed=True, fault="kill", fault_at=0.05, in_flight=_IN_FLIGHT)
    lone = this.start(work, "lone", _sees(0))
    lone.wait_for("first_kernel", _READY)
    lone.go()
    lone.wait_for("injected", _READY)
    lone.finish(_READY)
    newcomers = this.come(time.monotonic(), AFTER_A_KILL, _sees(0))
    return [(after, each.finish(_PATIENCE)) for after, each in zip(AFTER_A_KILL, newcomers, strict=True)]


def _beside_a_fault(this: _Try) -> list[tuple[float, Outcome]]:
    """A memory fault on one GPU, with innocents on both; newcomers come to the other one."""
    faulty = this.number % 2
    innocents = [this.start(Work(seconds=_EARLY, controlled=True), f"innocent-{gpu}", _sees(gpu)) for gpu in (0, 1)]
    work = Work(seconds=60, controlled=True, fault="far", fault_at=0.05)
    culprit = this.start(work, "culprit", _sees(faulty))
    crew = [*innocents, culprit]
    for client in crew:
        client.wait_for("first_kernel", _READY)
    for client in crew:
        client.go()
    began = culprit.wait_for("injected", _READY).monotonic
    # The simulation has no UVM queue, which tells of a fault 0.15 s before the server does: on a busy machine, a guard
    # may hear of it after the newcomer of 0.2 s has come.
    schedule = tuple(after for after in AFTER_A_FAULT if after >= _TOLD or not this.bench.programs.simulated)
    newcomers = this.come(began, schedule, _sees(1 - faulty))
    for client in crew:
        client.finish(_READY)
    return [(after, each.finish(_PATIENCE)) for after, each in zip(schedule, newcomers, strict=True)]


def _repeat(bench: Bench, target: Target, tries: int, into: Newcomers, make: _Make) -> None:
    """Make the tries; what goes wrong in one is noted, and the others are made."""
    for number in range(tries):
        try:
            with Clients() as clients:
                _recovered(bench, target, clients)
                into.outcomes += make(_Try(bench, target, clients, number))
                into.tries += 1
        except (SuiteError, OSError, ValueError) as error:  # TimeoutError is an OSError
            into.errors.append(f"{target.name}, try {number}: {error}"[:400])
            bench.say(into.errors[-1])
    bench.say(f"{target.name}: {into.describe()}")


def _recovered(bench: Bench, target: Target, clients: Clients) -> None:
    """Wait until a client is served on either GPU: what is left of the last try is not this one's."""
    limit = time.monotonic() + _RECOVERED
    for gpu in (0,) if bench.programs.simulated else range(min(2, len(uuids()))):
        while True:
            worker = bench.programs.worker(Work(seconds=0))
            outcome = clients.start(worker, target.pipe_directory, "probe", _sees(gpu)).finish(_PATIENCE)
            if outcome.ok:
                break
            if time.monotonic() > limit:
                raise SuiteError(f"no client is served: {outcome.describe()}")


def _finding(name: str, guarded: Newcomers, stock: Newcomers) -> Finding:
    peer = Peer(name="stock", value=len(stock.refused), count=len(stock.outcomes) or None)
    return none_of(
        name,
        len(guarded.refused) + len(guarded.errors),
        len(guarded.outcomes) + len(guarded.errors),
        "clients",
        runs=guarded.tries,
        note=f"guard: {guarded.describe()}; stock: {stock.describe()}",
        peer=peer,
    )


def _note_states(bench: Bench, guard: Guard) -> None:
    """Print the lane's states, by which it is seen when ACTIVE was said."""
    for event in guard.lane_states()[-20:]:
        bench.say(f"lane: {event}")


def _sees(gpu: int) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": str(gpu)}


MEASUREMENT: Final = Measurement(
    "newcomers", "clients that come after a lone client's kill, and beside a fault on another GPU", measure
)
