"""Crashes with a kernel in flight: a guard with lifelines against stock MPS, three innocents at work all the while."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, none_of
from tests.bench.core.guard import Guard, Options
from tests.bench.isolation import culprit
from tests.bench.isolation.culprit import CLEAN, EXIT, KILL, OOM, SEGV, Kind
from tests.bench.isolation.innocents import COUNT, Innocents, slowest
from tests.bench.isolation.partial import kept
from tests.bench.isolation.tally import Tally, survival
from tests.bench.results.schema import Row
from tests.bench.triage import memory_group
from tests.bench.triage.memory_group import NoMemoryGroupError

KINDS: Final = (KILL, SEGV, EXIT, OOM)
REPETITIONS, QUICK_REPETITIONS = 20, 2
STOCK_REPETITIONS, QUICK_STOCK_REPETITIONS = 5, 1
LENGTHS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0)
"""Seconds that the kernel in flight takes, in turn."""
SLOW_LENGTHS: Final = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.0)
"""The same where the end takes a while: the kernel must still be there then."""
STOCK_STEP: Final = 4
"""Of the lengths, those that are taken in the stock arm: each one so far from the last."""
HOLD: Final = 10.0
OPTIONS: Final = Options(crash_hold=HOLD, exit_hold=HOLD)
RATIO_BAR: Final = 2.0
WATCH: Final = 0.4
"""Seconds after the end of a culprit in which the innocents die of it if they do; 0.15 were seen."""
STOCK_WATCH: Final = 1.2
AFTER: Final = 0.5
"""Seconds to watch on when the last lifeline has been let go."""
_LET_GO: Final = HOLD + 5.0
_ERRORS: Final = 3
"""After as many failures the rest of a kind is not tried."""


def length_of(kind: Kind, number: int) -> float | None:
    """Seconds of the kernel in flight at that repetition; None if there is none."""
    if not kind.busy:
        return None
    lengths = SLOW_LENGTHS if kind.slow else LENGTHS
    return lengths[number % len(lengths)]


@dataclass
class Loop:
    """One kind of end, over and over, beside the innocents of one target."""

    bench: Bench
    target: Target
    clients: Clients
    innocents: Innocents
    kind: Kind
    numbers: Sequence[int]
    """Which repetitions: they choose the lengths."""
    stock: bool

    def run(self, tally: Tally) -> None:
        """Make them; what came of them is in ``tally``, also if this is stopped."""
        self.innocents.ready()
        if not self.stock:
            tally.begin = self.innocents.settle()
        before = tuple(self.innocents.crew)
        with ExitStack() as groups:
            try:
                self._run(tally, groups)
            except NoMemoryGroupError as error:
                tally.skipped = f"no memory cgroup: {error}"
            finally:
                tally.end = time.monotonic()
                if before == tuple(self.innocents.crew):
                    tally.crew = before

    def _run(self, tally: Tally, groups: ExitStack) -> None:
        """The next culprit starts while the innocents are watched after the last: a repetition takes half a second."""
        upcoming: _Started | None = None
        for place, number in enumerate(self.numbers):
            try:
                self.innocents.ready(fresh=self.stock and place > 0)
                one = upcoming or self._start(number, groups)
                upcoming = None
                one.client.wait_for("first_kernel", culprit.START)
                if one.group is not None:
                    memory_group.close(one.group)
                done = culprit.crash(one.client, self.kind)
                if not self.stock and place + 1 < len(self.numbers):
                    upcoming = self._start(self.numbers[place + 1], groups)
                alive = self.innocents.watch(done.ended + (STOCK_WATCH if self.stock else WATCH))
                tally.add(alive)
                if alive < COUNT and upcoming is not None:  # what killed them may have hit it too
                    upcoming.client.end(grace=0.0)
                    upcoming = None
                self._say(tally, number, alive)
            except (SuiteError, TimeoutError) as error:
                tally.errors.append(str(error))
                self.bench.say(f"{tally.name}: {error}")
                if upcoming is not None:
                    upcoming.client.end(grace=0.0)
                    upcoming = None
                if len(tally.errors) >= _ERRORS:
                    return

    def _start(self, number: int, groups: ExitStack) -> "_Started":
        group = None
        if self.kind.needs_group:
            group = groups.enter_context(memory_group.made(f"gpu-suite-{self.bench.root.name}-{number}"))
        length = length_of(self.kind, number)
        client = culprit.start(self.bench, self.target, self.clients, self.kind, in_flight=length, group=group)
        return _Started(client, group)

    def _say(self, tally: Tally, number: int, alive: int) -> None:
        length = length_of(self.kind, number)
        flight = "" if length is None else f", kernel of {length:g} s"
        self.bench.say(
            f"{self.target.name}, {tally.name} {tally.made} of {tally.wanted}{flight}: {alive} of {COUNT} live"
        )


@dataclass(frozen=True)
class _Started:
    client: Client
    group: Path | None


@dataclass
class Study:
    """All that is measured here; `rows` shows what there is at any time."""

    bench: Bench
    guarded: dict[str, Tally] = field(default_factory=dict)
    stock: dict[str, Tally] = field(default_factory=dict)
    releases: Tally | None = None
    """The time in which the lifelines are let go, as one repetition."""
    late: int = 0
    """Innocents of the guarded arm that died between two repetitions."""
    left: int | None = None
    """Lifelines that were still held at the end."""

    def make(self) -> None:
        """The guarded arm, then stock."""
        with self.bench.guard(options=OPTIONS) as guard, Clients() as clients:
            self._guarded(guard, clients)
        self._stock_arm()

    def _guarded(self, guard: Guard, clients: Clients) -> None:
        innocents = Innocents(self.bench, guard, clients)
        repetitions = self.bench.runs(REPETITIONS, QUICK_REPETITIONS)
        try:
            for kind in (CLEAN, *KINDS):
                tally = self.guarded[kind.name] = Tally(kind.name, repetitions)
                Loop(self.bench, guard, clients, innocents, kind, range(repetitions), stock=False).run(tally)
            self._release(guard, innocents)
        finally:
            innocents.count_late()
            self.late = innocents.late
            for tally in (*self.guarded.values(), *([self.releases] if self.releases else [])):
                self._measure(tally)

    def _release(self, guard: Guard, innocents: Innocents) -> None:
        tally = self.releases = Tally("while lifelines are let go", 1)
        innocents.ready()
        tally.begin = innocents.settle()
        limit = time.monotonic() + _LET_GO
        while (held := guard.lifelines()) and time.monotonic() < limit:
            self.bench.say(f"{len(held)} lifelines are held")
            innocents.watch(time.monotonic() + 0.5)
        self.left = len(held)
        tally.end = time.monotonic() + AFTER
        tally.add(innocents.watch(tally.end))
        tally.crew = tuple(innocents.crew)
        innocents.settle()

    @staticmethod
    def _measure(tally: Tally) -> None:
        """From the reports of the crew that was there all the while."""
        if tally.all_lived and tally.crew:
            with suppress(ValueError):  # stopped before all had reported: it is not measured
                tally.slowest = slowest(tally.crew, tally.begin, tally.end)

    def _stock_arm(self) -> None:
        count = self.bench.runs(STOCK_REPETITIONS, QUICK_STOCK_REPETITIONS)
        numbers = [STOCK_STEP * place for place in range(count)]
        with self.bench.stock() as stock, Clients() as clients:
            innocents = Innocents(self.bench, stock, clients)
            for kind in KINDS:
                if not self.guarded[kind.name].skipped:
                    tally = self.stock[kind.name] = Tally(kind.name, count)
                    Loop(self.bench, stock, clients, innocents, kind, numbers, stock=True).run(tally)

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        clean = self.guarded.get(CLEAN.name)
        for kind in (CLEAN, *KINDS):
            if (tally := self.guarded.get(kind.name)) is not None:
                yield from survival(tally, self.stock.get(kind.name))
                if kind is not CLEAN and not tally.skipped:
                    yield pause(tally, clean)
        if self.releases is not None:
            yield from survival(self.releases, None)
            yield pause(self.releases, clean)
        if self.left is not None:
            crashes = sum(self.guarded[kind.name].made for kind in KINDS)
            yield none_of("innocents that died between two repetitions", self.late, crashes * COUNT, "innocents")
            yield none_of("lifelines left at the end", self.left, crashes, "lifelines")


def pause(tally: Tally, clean: Tally | None) -> Finding:
    """The innocents' slowest iteration over that beside culprits that end in order; unmeasured, it does not hold."""
    ratio = tally.slowest / clean.slowest if tally.slowest and clean is not None and clean.slowest else None
    row = Row(
        name=f"{tally.name}: innocents' slowest iteration over that beside clean ends",
        value=0 if ratio is None else float(f"{ratio:.4g}"),
        unit="",
        bar=f"<= {RATIO_BAR:g}",
        holds=ratio is not None and ratio <= RATIO_BAR,
        runs=tally.made or 1,
    )
    if ratio is None or clean is None or tally.slowest is None or clean.slowest is None:
        return Finding(row, "not measured: somebody died, or one of the two loops was not made")
    note = f"{1000 * tally.slowest:.2f} ms, beside clean ends {1000 * clean.slowest:.2f} ms"
    return Finding(row, note, samples=(row.value,))


def measure(bench: Bench) -> Iterator[Finding]:
    """Both arms, and the rows of what was made."""
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "crashes", "SIGKILL, SIGSEGV, exit, OOM kill with a kernel of 10 ms to 5 s in flight, against stock", measure
)
