"""A client that executes another program with a kernel in flight: a guard against stock MPS, three innocents."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, none_of
from tests.bench.core.guard import Guard
from tests.bench.core.programs import compile_cuda
from tests.bench.isolation.crashes import HOLD, LENGTHS, OPTIONS, STOCK_STEP, STOCK_WATCH, WATCH
from tests.bench.isolation.innocents import COUNT, Innocents
from tests.bench.isolation.partial import kept
from tests.bench.isolation.tally import Tally, survival
from tests.bench.results.schema import Row

REPETITIONS, QUICK_REPETITIONS = 20, 2
STOCK_REPETITIONS, QUICK_STOCK_REPETITIONS = 4, 1
_START: Final = 30.0
_INJECTED: Final = 10.0
_NAMED: Final = 10.0
"""Seconds in which a culprit must have been named."""
_LET_GO: Final = HOLD + 5.0
_ERRORS: Final = 3
"""After as many failures the rest of an arm is not tried."""
_LOOK: Final = 0.001
_PROGRAM: Final = "sleep"


def program(bench: Bench) -> list[str]:
    """The command line of the client, without the seconds of its kernel."""
    if bench.programs.simulated:
        return [sys.executable, str(Path(__file__).with_name("simulated_exec.py"))]
    binary = bench.root / "exec_away"
    return [str(binary if binary.exists() else compile_cuda("exec_away", bench.root))]


def exec_away(culprit: Client) -> float:
    """Let it commit its exec; when that was seen. SuiteError if it did not, or no kernel was in flight."""
    culprit.go()
    injected = culprit.wait_for("injected", _INJECTED)
    limit = time.monotonic() + _INJECTED
    # A look at /proc: nothing else tells this process that another one has become a different program.
    while Path(f"/proc/{culprit.pid}/comm").read_text().strip() != _PROGRAM:
        if time.monotonic() > limit or culprit.ended_with() is not None:
            raise SuiteError("it did not execute another program")
        time.sleep(_LOOK)
    if not injected.number("in_flight"):
        raise SuiteError("no kernel was in flight")
    return time.monotonic()


@dataclass
class Study:
    """All that is measured here; `rows` shows what there is at any time."""

    bench: Bench
    guarded: Tally | None = None
    stock: Tally | None = None
    culprits: set[int] = field(default_factory=set)
    named: set[int] = field(default_factory=set)
    accused: int = 0
    """Innocents that an incident names."""
    late: int = 0
    """Innocents that died between two repetitions, or while the lifelines were let go."""
    left: int | None = None
    """Lifelines that were still held at the end."""

    def make(self) -> None:
        """The guarded arm, then stock."""
        repetitions = self.bench.runs(REPETITIONS, QUICK_REPETITIONS)
        self.guarded = Tally("exec", repetitions)
        with self.bench.guard(options=OPTIONS) as guard, Clients() as clients:
            innocents = Innocents(self.bench, guard, clients)
            self._repeat(guard, innocents, self.guarded, range(repetitions), watch=WATCH, fresh=False)
            self._afterwards(guard, innocents)
        count = self.bench.runs(STOCK_REPETITIONS, QUICK_STOCK_REPETITIONS)
        self.stock = Tally("exec", count)
        with self.bench.stock() as stock, Clients() as clients:
            innocents = Innocents(self.bench, stock, clients)
            numbers = range(0, STOCK_STEP * count, STOCK_STEP)
            self._repeat(stock, innocents, self.stock, numbers, watch=STOCK_WATCH, fresh=True)

    def _repeat(
        self,
        target: Target,
        innocents: Innocents,
        tally: Tally,
        numbers: range,
        *,
        watch: float,
        fresh: bool,
    ) -> None:
        for place, number in enumerate(numbers):
            length = LENGTHS[number % len(LENGTHS)]
            innocents.ready(fresh=fresh and place > 0)
            culprit = innocents.clients.start(
                [*program(self.bench), str(length)], target.pipe_directory, f"{target.name}-exec"
            )
            try:
                culprit.wait_for("first_kernel", _START)
                alive = innocents.watch(exec_away(culprit) + watch)
                tally.add(alive)
                if isinstance(target, Guard):
                    self.culprits.add(culprit.pid)
                    # A guard that the kernel tells nothing looks for execs a few times a second; of one that is over
                    # by then it sees an end by a signal.
                    self._wait_for_names(target)
                self.bench.say(f"{target.name}, exec {tally.made} of {tally.wanted}, {length:g} s: {alive} of {COUNT}")
            except (SuiteError, TimeoutError, FileNotFoundError) as error:
                tally.errors.append(str(error))
                self.bench.say(f"{target.name}: {error}")
                if len(tally.errors) >= _ERRORS:
                    return
            finally:
                # It runs another program by now, and the end of that hurts no other client.
                culprit.end(grace=0.0)

    def _wait_for_names(self, guard: Guard) -> None:
        limit = time.monotonic() + _NAMED
        while not self.culprits <= self.named and time.monotonic() < limit:
            told = [each for each in guard.incidents() if each["culprit"] is not None]
            self.named = {each["culprit"] for each in told if "executing another program" in each["reason"]}

    def _afterwards(self, guard: Guard, innocents: Innocents) -> None:
        crew = {client.pid for client in innocents.crew}
        self.accused = len(crew & {each["culprit"] for each in guard.incidents()})
        limit = time.monotonic() + _LET_GO
        while (held := guard.lifelines()) and time.monotonic() < limit:
            innocents.watch(time.monotonic() + 0.5)
        self.left = len(held)
        innocents.watch(time.monotonic() + WATCH)
        innocents.count_late()
        self.late = innocents.late + COUNT - innocents.alive()

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        if self.guarded is None:
            return
        yield from survival(self.guarded, self.stock)
        made = len(self.culprits)
        named = len(self.culprits & self.named)
        yield Finding(
            Row(
                name="exec: culprits named",
                value=named,
                count=made,
                unit="culprits",
                bar=f"{made} of {made}",
                holds=made > 0 and named == made,
                runs=max(made, 1),
            )
        )
        if self.left is not None:
            yield none_of("exec: innocents named", self.accused, made, "culprits")
            yield none_of("exec: innocents that died between or after", self.late, made * COUNT, "innocents")
            yield none_of("exec: lifelines left at the end", self.left, made, "lifelines")


def measure(bench: Bench) -> Iterator[Finding]:
    """Both arms, and the rows of what was made."""
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "exec", "execve with a kernel of 10 ms to 5 s in flight, three innocents beside it, against stock", measure
)
