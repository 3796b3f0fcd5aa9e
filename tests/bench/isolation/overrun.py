"""A program that accesses memory outside its allocation: where zones are, and under stock MPS alone."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import Outcome
from tests.bench.core.finding import Finding, none_of, sampled
from tests.bench.core.guard import Guard
from tests.bench.core.statistics import percentile
from tests.bench.isolation import preloaded
from tests.bench.isolation.innocents import COUNT, Innocents
from tests.bench.isolation.partial import kept
from tests.bench.isolation.tally import Tally, survival
from tests.bench.results.schema import Row
from tests.bench.triage.incidents import Incidents, wait_until

REPETITIONS, QUICK_REPETITIONS = 20, 2
STOCK_REPETITIONS, QUICK_STOCK_REPETITIONS = 5, 1
ACCESSES: Final = (
    ("--past", "0", "--access", "write"),
    ("--past", "1048576", "--access", "read"),
    ("--past", "33554432", "--access", "atomic"),
    ("--before", "4", "--access", "write"),
    ("--past", "62914560", "--access", "read"),
)
"""In turn; all within the zones that the preload has by default."""
ORDERED: Final = ("--past", "2097152", "--access", "write", "--by", "ordered")
"""Off memory that was allocated in stream order, which only a preload can put zones around."""
STOCK_ACCESSES: Final = (("--past", "62914560", "--access", "write"), ("--past", "62914560", "--access", "read"))
"""As far off as the numbered fault `near`, where plain allocation has nothing mapped."""
WATCH: Final = 0.4
STOCK_WATCH: Final = 1.2
PUBLISHED: Final = 1.0
"""Seconds in which the incident must be published."""
_START: Final = 30.0
_ENDS: Final = 10.0
_ERRORS: Final = 3
_PAGE: Final = 4096
"""The driver reports the page of an access, not the byte."""


@dataclass(frozen=True)
class Subject:
    """The program, and what makes its zones."""

    name: str
    command: Callable[[Bench, tuple[str, ...]], list[str]]
    variables: Callable[[Bench], Mapping[str, str]]
    accesses: tuple[tuple[str, ...], ...] = ACCESSES
    told: bool = True
    """Whether the zones report what they absorb."""
    beside_stock: bool = True
    """Whether the same is done under stock MPS, without zones."""


PRELOADED: Final = Subject(
    "overrun under the preload", preloaded.overrun, preloaded.variables, accesses=(*ACCESSES, ORDERED)
)


@dataclass
class Study:
    """Both arms."""

    bench: Bench
    subject: Subject = PRELOADED
    guarded: Tally = field(init=False)
    stock: Tally | None = None
    finished: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    """From just before the launch to the publication, for incidents that name the program's pid."""
    late: int = 0
    placed: int = 0
    """Incidents that say truly how far outside its allocation the access was."""
    incidents: int = 0
    """All that were made."""
    failures: list[str] = field(default_factory=list)
    """How the programs ended that did not finish."""

    def __post_init__(self) -> None:
        self.guarded = Tally(self.subject.name, self.bench.runs(REPETITIONS, QUICK_REPETITIONS))

    def make(self) -> None:
        """The guarded arm, then stock."""
        variables = self.subject.variables(self.bench)
        with self.bench.guard() as guard, Clients() as clients, Incidents(_run_directory(guard)) as incidents:
            self._guarded(guard, clients, incidents, variables)
        if not self.subject.beside_stock:
            return
        self.stock = Tally(self.subject.name, self.bench.runs(STOCK_REPETITIONS, QUICK_STOCK_REPETITIONS))
        with self.bench.stock() as stock, Clients() as clients:
            self._stock(stock, clients, self.stock)

    def _guarded(self, guard: Guard, clients: Clients, incidents: Incidents, variables: Mapping[str, str]) -> None:
        innocents, tally = Innocents(self.bench, guard, clients), self.guarded
        while tally.made + len(tally.errors) < tally.wanted and len(tally.errors) < _ERRORS:
            try:
                innocents.ready()
                access = self.subject.accesses[(tally.made + len(tally.errors)) % len(self.subject.accesses)]
                client = self._start(clients, guard, access, variables)
                incidents.begin()
                injected, done = _run(client)
                self._judge(done)
                tally.add(innocents.watch(injected + WATCH))
                self._hear(incidents, client.pid, injected, access)
                self.bench.say(
                    f"{self.subject.name} {' '.join(access)}, {tally.made} of {tally.wanted}: "
                    f"{'finished' if self._went_well(done) else 'FAILED'}, {len(self.latencies_ms)} named"
                )
            except (SuiteError, TimeoutError) as error:
                tally.errors.append(str(error))
                self.bench.say(f"overrun: {error}")
        innocents.settle()  # they work, and do not only live
        innocents.count_late()
        self.late = innocents.late

    @staticmethod
    def _went_well(done: Outcome) -> bool:
        """Whether it was unaffected: no error, its memory as it was, and an end in order."""
        intact = done.find("intact")
        return done.ok and intact is not None and intact.members.get("value") is True

    def _judge(self, done: Outcome) -> None:
        if self._went_well(done):
            self.finished += 1
        else:
            self.failures.append(done.describe())

    def _hear(self, incidents: Incidents, pid: int, injected: float, access: tuple[str, ...]) -> None:
        """Wait for the incident of class mmu that names the program; note how long it took, and what it says."""

        def told() -> list[tuple[float, str]]:
            return [
                (each.published_at, each.id)
                for each in incidents.published()
                if each.culprit == pid and each.fault_class == "mmu" and each.published_at is not None
            ]

        if wait_until(lambda: bool(told()), injected + PUBLISHED):
            at, incident = min(told())
            self.latencies_ms.append(1000 * (at - injected))
            found = incidents.detailed(incident)
            self.placed += found is not None and any(says_where(each, access) for each in found.evidence)
        self.incidents += len(incidents.listed())

    def _stock(self, target: Target, clients: Clients, tally: Tally) -> None:
        innocents = Innocents(self.bench, target, clients)
        while tally.made + len(tally.errors) < tally.wanted and len(tally.errors) < _ERRORS:
            try:
                innocents.ready(fresh=tally.made > 0)
                access = STOCK_ACCESSES[tally.made % len(STOCK_ACCESSES)]
                client = self._start(clients, target, access, {})
                injected, done = _run(client)
                error = done.find("error")
                if error is None or not error.number("code"):
                    raise SuiteError(f"the access did no harm, so it was none: {done.describe()}")
                tally.add(innocents.watch(injected + STOCK_WATCH))
                self.bench.say(f"stock overrun {tally.made} of {tally.wanted}: {innocents.alive()} of {COUNT} live")
            except (SuiteError, TimeoutError) as error:
                tally.errors.append(str(error))
                self.bench.say(f"stock overrun: {error}")

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        tally, name = self.guarded, self.subject.name
        yield from survival(tally, self.stock)
        yield none_of(f"{name}: innocents that died between two repetitions", self.late, tally.total, "innocents")
        if not tally.made:
            return
        yield _all(f"{name}: the program finishes", self.finished, tally, "; ".join(self.failures[:3]))
        if not self.subject.told:
            yield none_of(f"{name}: incidents, since nobody is told", self.incidents, tally.made, "runs")
            return
        named = len(self.latencies_ms)
        yield _all(f"{name}: incidents of class mmu that name the program", named, tally, "")
        yield _all(f"{name}: incidents that say how far outside it was, to {_PAGE} bytes", self.placed, tally, "")
        if self.latencies_ms:
            yield sampled(
                f"{name}: access to published incident, p50",
                self.latencies_ms,
                unit="ms",
                bar="reported",
                holds=named == tally.wanted,
            )
            value = percentile(self.latencies_ms, 0.99)
            row = Row(
                name=f"{name}: access to published incident, p99",
                value=float(f"{value:.6g}"),
                unit="ms",
                bar="reported",
                holds=named == tally.wanted,
                runs=named,
            )
            yield Finding(row, samples=(row.value,))

    def _start(self, clients: Clients, target: Target, access: tuple[str, ...], variables: Mapping[str, str]) -> Client:
        argv = self.subject.command(self.bench, ("--controlled", *access))
        client = clients.start(argv, target.pipe_directory, f"{target.name}-overrun", variables)
        client.wait_for("allocated", _START)
        return client


def says_where(evidence: Mapping[str, object], access: tuple[str, ...]) -> bool:
    """Whether it is of a zone, and of the place that the program was told to access."""
    what = evidence.get("what")
    if not isinstance(what, dict) or what.get("type") != "zone_hit" or not isinstance(what.get("beyond"), int):
        return False
    past, distance, beyond = access[0] == "--past", int(access[1]), int(what["beyond"])
    wanted = distance + 1 if past else -distance
    return (beyond > 0) == past and abs(beyond - wanted) < _PAGE


def _run_directory(guard: Guard) -> Path:
    lane, _ = guard.lane()
    return Path(lane.pipe_directory).parents[2]  # RUN/lanes/NAME/pipe


def _run(client: Client) -> tuple[float, Outcome]:
    """When it made the access, and how it ended."""
    client.go()
    injected = client.wait_for("injected", _ENDS).monotonic
    done = client.finish(_ENDS)
    if done.find("error") is None:
        raise SuiteError(f"it is not known whether the access was made: {done.describe()}")
    return injected, done


def _all(name: str, got: int, tally: Tally, note: str) -> Finding:
    """A row that holds if it was so in every repetition, and all were made."""
    holds = got == tally.made == tally.wanted
    bar = f"{tally.made} of {tally.made}"
    return Finding(
        Row(name=name, value=got, count=tally.made, unit="runs", bar=bar, holds=holds, runs=tally.made), note
    )


def measure(bench: Bench) -> Iterator[Finding]:
    """Both arms, and the rows of what was made."""
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement("overrun", "an access outside an allocation under the preload, against stock", measure)
