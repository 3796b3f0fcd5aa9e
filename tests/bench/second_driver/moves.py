"""Moves of unmodified programs under load, without a fault: to the other lane, and to another share of the SMs."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Final, NamedTuple

from mpsguard.guard.control_api.messages.clients import ClientMoved
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import Outcome
from tests.bench.core.finding import Finding, all_of, sampled
from tests.bench.core.gpu_memory import MIB, GpuMemory, gpu_memory
from tests.bench.core.guard import Guard, Options
from tests.bench.isolation import preloaded
from tests.bench.isolation.partial import kept, not_made, skipped
from tests.bench.results.schema import Row
from tests.bench.second_driver import programs, second, trials
from tests.bench.second_driver.idle import ended
from tests.bench.second_driver.programs import GRAPHS, TORCH, Program, State
from tests.bench.second_driver.second import Mode, Takeover

BARS: Final = {Mode.COLD: 250.0, Mode.HOT: 50.0}
"""Milliseconds for which a program may stand still, by their median."""
ROUNDS: Final = 5
STEPS: Final = "450"
"""Rounds of the CUDA C++ programs, of 8 ms."""
SIMULATED_STEPS: Final = "2500"
SHARE: Final = 50.0
_START: Final = 60.0
_GO_ON: Final = 60.0
_SAVED: Final = 0.5
"""Seconds in which a hot second driver is ready."""
_LET_GO: Final = 1.0
"""Seconds after a move in which the old lane has given memory back."""


class Change(StrEnum):
    """What a move changes."""

    LANE = "other lane"
    SHARE = "other share"
    CLOSED_LANE = "other lane, old connections shut down"
    CLOSED_SHARE = "other share, old connections shut down"

    @property
    def closes(self) -> bool:
        """Whether the program shuts its old connections down: this is tried."""
        return self in (Change.CLOSED_LANE, Change.CLOSED_SHARE)


class Wanted(NamedTuple):
    """A program, and how it is to move."""

    program: Program
    mode: Mode
    change: Change

    @property
    def label(self) -> str:
        """In a few words."""
        return f"{self.program.name}, {self.mode}, {self.change}"


@dataclass(frozen=True)
class Case:
    """One program and one move."""

    program: str
    mode: Mode
    change: Change
    moved: ClientMoved | None
    refusal: str
    outcome: Outcome
    report: Takeover | None
    listed: bool
    """Whether the server of the old lane lists the process afterwards."""
    memory: float
    """MiB of the GPU that are in use after the move, beyond those before it."""

    @property
    def went_on(self) -> bool:
        """Whether it moved, and finished its work."""
        return self.moved is not None and self.outcome.ok

    def describe(self) -> str:
        """In a few words."""
        if self.moved is None:
            return f"stays: {self.refusal}"[:300]
        steps = "" if self.report is None else f", quiet {self.report.quiet:.1f}, memory {self.report.memory:.1f}"
        times = f"paused {1e3 * self.moved.paused:.1f} ms (prepared {1e3 * self.moved.prepared:.0f}{steps})"
        end = "" if self.outcome.ok else f"; then {self.outcome.describe()[:200]}"
        lane = f"{self.moved.was} to {self.moved.lane}, {'listed' if self.listed else 'not listed'} there"
        kept_open = f", kept: {self.moved.kept}" if self.moved.kept else ""
        return f"{times}, {lane}, {self.memory:+.0f} MiB{kept_open}{end}"


@dataclass
class Study:
    """All of it; `rows` shows what there is at any time."""

    bench: Bench
    programs: list[Program] = field(default_factory=list)
    missing: str = ""
    undisturbed: dict[str, str | None] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def wanted(self) -> list[Wanted]:
        """The moves of one round, with those of the first program that are tried and promised to none."""
        made = []
        for each in self.programs:
            both = [Wanted(each, mode, change) for mode in Mode for change in (Change.LANE, Change.SHARE)]
            # The others take as long as all of the first one's.
            made += both if each is self.programs[0] or not self.bench.quick else [both[0], both[-1]]
            if each is self.programs[0]:
                made += [Wanted(each, Mode.COLD, change) for change in Change if change.closes]
        return made

    def make(self) -> None:
        """Build, then all rounds, each at a guard of its own."""
        found, self.missing = programs.all_of_them(self.bench, State.BUSY)
        steps = SIMULATED_STEPS if self.bench.programs.simulated else STEPS
        self.programs = [_shorter(each, steps) for each in found if each.name != GRAPHS]
        preload = preloaded.variables(self.bench)
        for number in range(self.bench.runs(ROUNDS, 1)):
            with (
                self.bench.guard(options=Options(standby=True)) as guard,
                gpu_memory(self.bench, guard) as memory,
                Clients() as clients,
            ):
                self._round(number, guard, memory, clients, preload)

    def _round(
        self, number: int, guard: Guard, memory: GpuMemory, clients: Clients, preload: Mapping[str, str]
    ) -> None:
        """All start together, and are idle; then one after the other works, and moves."""
        begin = time.monotonic()
        plain = [(each, clients.start(each.command, guard.pipe_directory, each.name)) for each in self.programs]
        started = []
        for place, wanted in enumerate(self.wanted):
            variables = {**preload, **second.variables(wanted.mode, None, self.bench.root / _report(number, place))}
            command = wanted.program.command
            started.append(clients.start(command, guard.pipe_directory, wanted.label, variables))
        for client in [*(client for _, client in plain), *started]:
            client.wait_for("idle", _START)
        time.sleep(_SAVED)
        self.bench.say(f"round {number + 1}: all are idle after {time.monotonic() - begin:.1f} s")
        for _, client in plain:
            client.go()
        for program, client in plain:
            self.undisturbed[program.name] = trials.digest(ended(client, _GO_ON))
        for place, wanted in enumerate(self.wanted):
            try:
                case = self._case(guard, memory, started[place], wanted, _report(number, place))
            except (SuiteError, TimeoutError) as error:
                self.errors.append(f"{wanted.label}: {error}")
                self.bench.say(self.errors[-1])
            else:
                self.cases.append(case)
                self.bench.say(f"{wanted.label}: {case.describe()}")

    def _case(self, guard: Guard, memory: GpuMemory, client: Client, wanted: Wanted, report: str) -> Case:
        client.go()
        client.wait_for("busy", _START)
        before = memory.used()
        moved, refusal = None, ""
        try:
            closes = wanted.change.closes
            if wanted.change in (Change.LANE, Change.CLOSED_LANE):
                moved = guard.move(client.pid, close_old=closes)
            else:
                moved = guard.resize_program(client.pid, SHARE, close_old=closes)
        except SuiteError as error:
            refusal = str(error)
        time.sleep(_LET_GO)
        extra = (memory.used() - before) / MIB
        listed = moved is not None and client.pid in guard.lane_ui(moved.was).all_clients()
        outcome = ended(client, _GO_ON)
        said = second.takeover(self.bench.root / report)
        name, mode, change = wanted.program.name, wanted.mode, wanted.change
        return Case(name, mode, change, moved, refusal, outcome, said, listed, extra)

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        rounds = self.bench.runs(ROUNDS, 1)
        for change in (Change.LANE, Change.SHARE):
            mine = [each for each in self.cases if each.change is change]
            count = rounds * sum(each.change is change for each in self.wanted)
            told = "; ".join(f"{each.program}, {each.mode}: {each.describe()}" for each in mine)
            yield all_of(f"{change}: programs under load that go on", _count(mine), count, "programs", note=told)
            equal = sum(each.went_on and trials.digest(each.outcome) == self._agreed(each) for each in mine)
            yield all_of(f"{change}: results equal to an undisturbed run's, bit for bit", equal, count, "programs")
            for mode in Mode:
                yield from _times(change, mode, [each for each in mine if each.mode is mode])
        left = [each for each in self.cases if each.change is Change.LANE and each.moved is not None]
        if left:
            extra = [each.memory for each in left if each.mode is Mode.COLD]
            yield _reported("other lane, cold: GPU memory in use beyond that before the move", extra, "MiB")
        yield from self._tried()
        if self.missing:
            yield skipped(TORCH, self.missing)
        if self.programs:
            yield not_made("moves", self.errors, len(self.cases), rounds * len(self.wanted))

    def _agreed(self, case: Case) -> str | None:
        return self.undisturbed.get(case.program) or "none"

    def _tried(self) -> Iterator[Finding]:
        for each in self.cases:
            if each.change.closes:
                row = Row(
                    name=f"{each.program}: {each.change}: goes on",
                    value=int(each.went_on),
                    unit="programs",
                    bar="reported",
                    holds=True,
                    runs=1,
                )
                yield Finding(row, each.describe())


def _shorter(program: Program, steps: str) -> Program:
    """A CUDA C++ program works for a few seconds, which is enough for a move."""
    return program if program.name == TORCH else Program(program.name, (*program.command, steps), program.note)


def _report(number: int, place: int) -> str:
    return f"move-{number}-{place}.jsonl"


def _count(cases: list[Case]) -> int:
    return sum(each.went_on for each in cases)


def _times(change: Change, mode: Mode, cases: list[Case]) -> Iterator[Finding]:
    paused = [1e3 * each.moved.paused for each in cases if each.moved is not None]
    longest = [milliseconds for each in cases if (milliseconds := _longest(each)) is not None]
    if paused:
        bar = BARS[mode]
        name = f"{change}, {mode}: the program stands still"
        yield sampled(name, paused, unit="ms", bar=f"median <= {bar:g} ms", holds=median(paused) <= bar)
        prepared = [1e3 * each.moved.prepared for each in cases if each.moved is not None]
        yield _reported(f"{change}, {mode}: its second driver is made, while it runs", prepared, "ms")
    if longest:
        yield _reported(f"{change}, {mode}: longest round", longest, "ms")


def _longest(case: Case) -> float | None:
    event = case.outcome.find("went_on") if case.went_on else None
    return event.number("milliseconds") if event is not None else None


def _reported(name: str, samples: list[float], unit: str) -> Finding:
    return sampled(name, samples, unit=unit, bar="reported", holds=True)


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "moves", "unmodified programs under load that move to the other lane, and to another share", measure
)
