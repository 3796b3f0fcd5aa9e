"""A soak: a full server's clients, and every few seconds a fault, a crash, a termination or a reload, at random.

A memory fault ends the other clients of its lane on the stock driver (docs/reference/isolation.md): they start again,
and do not count. In everything else that happens no other client may be lost.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DIED
from tests.bench.core.finding import Finding, none_of, sampled
from tests.bench.core.guard import Guard, Options
from tests.bench.core.programs import Work
from tests.bench.isolation import culprit
from tests.bench.isolation.culprit import CLEAN, EXIT, KILL, SEGV, Kind
from tests.bench.isolation.partial import kept
from tests.bench.ops.scraper import Scraper
from tests.bench.results.schema import Row
from tests.harness.free_port import free_port

INNOCENTS, QUICK_INNOCENTS = 44, 3
"""With those that misbehave 48, which any server takes; a dead one with work in flight keeps its place for a while."""
SECONDS, QUICK_SECONDS = 480, 8
"""At most: it ends in time for the run's deadline."""
_LEAVES: Final = 75.0
"""Seconds before that deadline, for what is to be looked at afterwards."""
EVERY: Final = 5.0
"""Seconds from one incident to the next, on average."""
SEED: Final = 20261124
KERNEL_STEPS: Final = 400
HOLD: Final = 10.0
"""Seconds that lifelines are kept, as in the suite `isolation`. By default a client that exits with status 0 has none,
and what it leaves on the GPU ends the others (docs/concepts/lifelines.md)."""
STARTED_AT_ONCE: Final = 8
RSS_BAR_MIB: Final = 5.0
JOURNAL_BAR_MIB: Final = 128.0
"""Above what the guard's journal may take by its default configuration."""
ROUND_S: Final = 1.5
"""Seconds of work of each innocent around an incident. They rest in between: a client that starts beside 44 that keep
the GPU full takes seconds for it."""
_ROUND_WITHIN: Final = 15.0
_SETTLED: Final = 30.0
"""Seconds within which the last lifelines are let go."""
_NAMED: Final = 5.0
_RECOVERED: Final = 20.0
_WARM: Final = 4
"""Incidents after which memory is compared: by then every part of the guard has been used."""

CRASHES: Final[tuple[Kind, ...]] = (KILL, SEGV, EXIT)
FAULTS: Final = ("null", "far", "near")
ACTIONS: Final = {"crash": 4, "terminate": 3, "end": 2, "reload": 2, "fault": 1}
"""What may happen, and how often beside the others."""


@dataclass(frozen=True)
class _State:
    """What the guard's own process holds."""

    memory_mib: float
    descriptors: int


@dataclass
class _Soak:
    bench: Bench
    dice: random.Random = field(default_factory=lambda: random.Random(SEED))
    made: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """Innocents lost, by what had happened."""
    unavoidable: int = 0
    named: int = 0
    """Faults with the right culprit, proven."""
    misnamed: int = 0
    errors: list[str] = field(default_factory=list)
    scraper: Scraper | None = None
    before: _State | None = None
    after: _State | None = None
    journal_mib: float | None = None
    survived: bool = False
    """Whether the guard is the process that it was."""
    seconds: float = 0.0
    crew: list[Client] = field(default_factory=list)
    _began: float = 0.0
    """When the innocents were told to work."""

    def make(self) -> None:
        port = free_port()
        options = Options(address=f"127.0.0.1:{port}", crash_hold=HOLD, exit_hold=HOLD)
        with self.bench.guard(options=options) as guard, Clients() as clients, Scraper(port) as scraper:
            self.scraper = scraper
            pid = guard.pid
            self._fill(guard, clients)
            began = time.monotonic()
            end = min(began + self.bench.runs(SECONDS, QUICK_SECONDS), self.bench.ends_at - _LEAVES)
            actions = self._actions()
            while time.monotonic() < end:
                due = time.monotonic() + self.dice.uniform(0.4, 1.6) * EVERY
                self._one(guard, clients, next(actions))
                self._fill(guard, clients)
                if self.made.total() == _WARM:
                    self.before = _state(guard)
                time.sleep(max(0.0, min(due, end) - time.monotonic()))
            self.seconds = time.monotonic() - began
            self._settle(guard)
            self.after = _state(guard)
            self.journal_mib = _size(guard.state_directory) / 2**20
            self.survived = guard.pid == pid and psutil.pid_exists(pid)

    def _actions(self) -> Iterator[str]:
        """Each kind once, then at random."""
        yield from ACTIONS
        while True:
            yield self.dice.choices([*ACTIONS], [*ACTIONS.values()])[0]

    def _fill(self, guard: Guard, clients: Clients) -> None:
        """See that all innocents are there and at work."""
        count = self.bench.runs(INNOCENTS, QUICK_INNOCENTS)
        self.crew = [client for client in self.crew if _lives(client)]
        limit = time.monotonic() + _RECOVERED
        work = self.bench.programs.worker(
            Work(seconds=ROUND_S, work=KERNEL_STEPS, controlled=True, rounds=100_000, blocking=True)
        )
        while len(self.crew) < count:
            some = range(len(self.crew), min(count, len(self.crew) + STARTED_AT_ONCE))
            started = [clients.start(work, guard.pipe_directory, f"innocent-{number}") for number in some]
            for client in started:
                try:
                    client.wait_for("first_kernel", _RECOVERED)
                except SuiteError:
                    # Refused while the server recovers: it is tried again.
                    if time.monotonic() > limit:
                        raise
                    continue
                self.crew.append(client)

    def _one(self, guard: Guard, clients: Clients, action: str) -> None:
        before = len(self.crew)
        self._began = time.monotonic()
        try:
            if action == "crash":
                self._crash(guard, clients, self.dice.choice(CRASHES))
            elif action == "terminate":
                self._terminate(guard, clients)
            elif action == "end":
                self._crash(guard, clients, CLEAN)
            elif action == "reload":
                self._work()
                guard.reload()
            else:
                self._fault(guard, clients, self.dice.choice(FAULTS))
        except (SuiteError, TimeoutError) as error:
            self.errors.append(f"{action}: {error}")
        lost = before - sum(_worked(client, self._began) for client in self.crew)
        self.made[action] += 1
        if action == "fault":
            self.unavoidable += lost
        else:
            self.lost[action] += lost
        self.bench.say(f"{action} {self.made[action]}: {before - lost} of {before} live")

    def _crash(self, guard: Guard, clients: Clients, kind: Kind) -> None:
        length = self.dice.choice((0.05, 0.5, 1.0)) if kind.busy else None
        client = culprit.start(self.bench, guard, clients, kind, in_flight=length)
        client.wait_for("first_kernel", culprit.START)
        self._work()
        culprit.crash(client, kind)

    def _terminate(self, guard: Guard, clients: Clients) -> None:
        work = self.bench.programs.worker(Work(seconds=60, controlled=True))
        client = clients.start(work, guard.pipe_directory, "to-be-terminated")
        client.wait_for("first_kernel", culprit.START)
        client.go()
        self._work()
        guard.terminate(client.pid)
        client.end()

    def _fault(self, guard: Guard, clients: Clients, name: str) -> None:
        work = self.bench.programs.worker(Work(seconds=60, controlled=True, fault=name))
        client = clients.start(work, guard.pipe_directory, f"fault-{name}")
        client.wait_for("first_kernel", culprit.START)
        self._work()
        began = time.monotonic()
        client.go()
        client.wait_for("injected", culprit.START)
        verdict = _verdict(guard, began)
        self.named += verdict == (client.pid, "proven")
        self.misnamed += verdict is not None and verdict[0] not in {None, client.pid}
        client.end()

    def _work(self) -> None:
        """Have all innocents work for a round, which lasts until after what happens next."""
        self._began = time.monotonic()
        for client in self.crew:
            client.go()

    def _settle(self, guard: Guard) -> None:
        limit = time.monotonic() + _SETTLED
        while guard.lifelines() and time.monotonic() < limit:
            time.sleep(0.5)

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        happened = self.made.total() - self.made["fault"]
        count = self.bench.runs(INNOCENTS, QUICK_INNOCENTS)
        counts = ", ".join(f"{number} {name}" for name, number in sorted(self.made.items()))
        note = f"{counts} in {self.seconds:.0f} s"
        yield none_of(
            f"soak with {count} clients: clients lost beside crashes, terminations, ends and reloads",
            self.lost.total(),
            happened * count,
            "clients",
            note=note,
        )
        yield Finding(
            Row(
                name="soak: clients lost beside memory faults (unavoidable on the stock driver)",
                value=self.unavoidable,
                count=self.made["fault"] * count or None,
                unit="clients",
                bar="reported",
                holds=True,
                runs=self.made["fault"] or 1,
            )
        )
        faults = self.made["fault"]
        yield none_of("soak: memory faults without their culprit, proven", faults - self.named, faults, "faults")
        yield none_of("soak: faults for which another client was named", self.misnamed, faults, "faults")
        errors = "; ".join(self.errors[:4])
        yield none_of("soak: steps that could not be made", len(self.errors), self.made.total(), "steps", note=errors)
        if self.scraper is not None:
            failed, scrapes = self.scraper.failed, self.scraper.count
            yield none_of(
                "soak: scrapes of /metrics that failed", len(failed), scrapes, "scrapes", note="; ".join(failed[:3])
            )
        if self.before and self.after and self.journal_mib is not None:
            yield from self._held(self.before, self.after, self.journal_mib)

    def _held(self, before: _State, after: _State, journal_mib: float) -> Iterator[Finding]:
        grown = after.memory_mib - before.memory_mib
        yield sampled(
            "soak: memory of the guard at the end over that after its first incidents",
            [grown],
            unit="MiB",
            bar=f"<= {RSS_BAR_MIB:g} MiB",
            holds=grown <= RSS_BAR_MIB,
            note=f"{before.memory_mib:.1f} to {after.memory_mib:.1f} MiB",
        )
        more = after.descriptors - before.descriptors
        yield sampled(
            "soak: descriptors of the guard at the end over those after its first incidents",
            [more],
            unit="",
            bar="<= 0",
            holds=more <= 0,
            note=f"{before.descriptors} to {after.descriptors}",
        )
        yield sampled(
            "soak: what the guard has written (state directory)",
            [journal_mib],
            unit="MiB",
            bar=f"<= {JOURNAL_BAR_MIB:g} MiB",
            holds=journal_mib <= JOURNAL_BAR_MIB,
        )
        yield none_of("soak: restarts of the guard", int(not self.survived), 1, "restarts")


def _lives(client: Client) -> bool:
    return not client.seen(DIED) and client.ended_with() is None


def _worked(client: Client, since: float) -> bool:
    """Whether a client has done the round that it was told to begin then."""
    try:
        client.wait_for("round", _ROUND_WITHIN, after=since)
    except (SuiteError, TimeoutError):
        return False
    return _lives(client)


def _verdict(guard: Guard, after: float) -> tuple[int | None, str] | None:
    """The culprit and the confidence of the incident that began after then, once it is proven or time is up."""
    limit = time.monotonic() + _NAMED
    found: tuple[int | None, str] | None = None
    while time.monotonic() < limit:
        for each in guard.incidents():
            if each["began"] >= after:
                found = each.get("culprit"), str(each.get("confidence", ""))
        if found is not None and found[1] == "proven":
            return found
        time.sleep(0.1)
    return found


def _state(guard: Guard) -> _State:
    process = psutil.Process(guard.pid)
    return _State(process.memory_info().rss / 2**20, process.num_fds())


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    soak = _Soak(bench)
    yield from kept(soak.make, soak.rows)


MEASUREMENT: Final = Measurement(
    "soak", "48 clients, and a fault, crash, termination or reload about every five seconds", measure
)
