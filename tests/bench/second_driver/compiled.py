"""PyTorch programs with CUDA graphs, compiled kernels or cudaMallocAsync at a neighbour's SM fault, idle and busy."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DIED
from tests.bench.core.finding import Finding
from tests.bench.core.programs import CUDA, Work
from tests.bench.isolation import preloaded
from tests.bench.isolation.partial import kept, not_made, skipped
from tests.bench.second_driver import idle, programs, second, trials
from tests.bench.second_driver.programs import Program, State
from tests.bench.second_driver.second import Mode
from tests.bench.second_driver.trials import Trial, Undisturbed

KINDS: Final = {
    "inference": "PyTorch inference by a graph",
    "graphed": "PyTorch training by graphs",
    "compiled": "torch.compile",
    "overhead": "torch.compile, reduce-overhead",
    "ordered": "PyTorch with cudaMallocAsync",
    "ordered-inference": "PyTorch graph with cudaMallocAsync",
}
"""The kinds of `torch_compiled.py`, by their names in the rows."""
FAULT: Final = "trap"
ROUNDS: Final = 3
QUICK_KINDS: Final = ("inference", "graphed", "compiled", "overhead", "ordered")
QUICK_MODES: Final = {State.IDLE: (Mode.COLD,), State.BUSY: (Mode.HOT,)}
_ATTEMPTS: Final = 3
"""Of a fault that ends no lane there is another one: the driver outlives some."""
_SAVED: Final = 0.5
_COMMITTED: Final = 10.0
_OVER: Final = 0.5


@dataclass(frozen=True)
class Subject:
    """What is tried."""

    name: str
    title: str
    programs: Callable[[Bench, State], list[Program]]
    lacking: Callable[[Bench], str]
    """Why there is none here; empty if there is."""
    start: float = 120.0
    """Seconds within which a program has come so far that it is idle."""
    go_on: float = 45.0
    """Seconds within which it ends after the fault."""


@dataclass(frozen=True)
class _Running:
    """One program in a lane; ``mode`` None is stock MPS without the preload."""

    program: Program
    mode: Mode | None
    client: Client
    report: Path

    @property
    def label(self) -> str:
        return f"{self.program.name}, {self.mode or 'stock'}"


@dataclass
class _Lane:
    """The programs of one state, and the client that ends their lane."""

    state: State
    culprit: Client
    running: list[_Running]


@dataclass
class Study:
    """All of it; `rows` shows what there is at any time."""

    bench: Bench
    subject: Subject
    programs: Mapping[State, Sequence[Program]] = field(default_factory=dict)
    missing: str = ""
    """Why there is none of it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of all programs: where they keep what they compile."""
    preload: Mapping[str, str] = field(default_factory=dict)
    undisturbed: dict[tuple[str, State], Undisturbed] = field(default_factory=dict)
    trials: dict[State, list[Trial]] = field(default_factory=lambda: {state: [] for state in State})
    errors: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """How often each program meets a fault in each state."""
        return self.bench.runs(ROUNDS, 1)

    def modes(self, state: State) -> Sequence[Mode]:
        """With --quick, each mode in one state."""
        return QUICK_MODES[state] if self.bench.quick else tuple(Mode)

    def make(self) -> None:
        """Undisturbed first, which also compiles; then a lane for each state, and its fault."""
        self.missing = self.subject.lacking(self.bench)
        if self.missing:
            return
        self.programs = {state: self.subject.programs(self.bench, state) for state in State}
        self.preload = preloaded.variables(self.bench)
        names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        self.variables = {name: str(self.bench.root / name.lower()) for name in names}
        with self.bench.stock() as beside:
            self.bench.warm_up(beside)
            begin = time.monotonic()
            with Clients() as clients:
                self._compute_undisturbed(beside, clients)
            self.bench.say(f"undisturbed programs ended after {time.monotonic() - begin:.1f} s")
            for number in range(self.rounds):
                left: Sequence[State] = tuple(State)
                for attempt in range(_ATTEMPTS):
                    left = self._round(f"{number}-{attempt}", left, beside, last=attempt == _ATTEMPTS - 1)

    def _round(self, number: str, states: Sequence[State], beside: Target, *, last: bool) -> list[State]:
        """All programs in a lane for each state; the states of which the lane was not hit."""
        if not states:
            return []
        missed = []
        with ExitStack() as stack:
            targets = {state: stack.enter_context(self.bench.stock()) for state in states}
            # Ended before their daemons.
            clients = stack.enter_context(Clients())
            started = [self._start(number, state, targets[state], beside, clients) for state in states]
            for lane in started:
                lane.culprit.wait_for("first_kernel", self.subject.start)
                self._reach("idle", lane)
            time.sleep(_SAVED)
            for lane in started:
                try:
                    self._strike(lane)
                except (SuiteError, TimeoutError) as error:
                    self.bench.say(f"{lane.state}: {error}")
                    missed.append(lane.state)
                    if last:
                        self.errors.append(f"{lane.state}: {error}")
        return missed

    def _compute_undisturbed(self, lane: Target, clients: Clients) -> None:
        started = [
            (state, each, clients.start(each.command, lane.pipe_directory, f"{each.name}, {state}", self.variables))
            for state in State
            for each in self.programs[state]
        ]
        for state, program, client in started:
            digest = None
            try:
                client.wait_for("idle", self.subject.start)
                client.go()
            except (SuiteError, TimeoutError) as error:
                self.bench.say(f"{program.name}, {state}, undisturbed: {error}")
            else:
                digest = trials.digest(idle.ended(client, self.subject.go_on))
            self.undisturbed[program.name, state] = Undisturbed(program.name, (digest,))

    def _start(self, number: str, state: State, lane: Target, beside: Target, clients: Clients) -> _Lane:
        work = Work(seconds=_COMMITTED, controlled=True, fault=FAULT)
        culprit = clients.start(self.bench.programs.worker(work), lane.pipe_directory, f"culprit, {FAULT}")
        running = []
        for index, program in enumerate(self.programs[state]):
            # One is enough to see that the fault struck.
            stock = (None,) if index == 0 or not self.bench.quick else ()
            for mode in (*stock, *self.modes(state)):
                report = self.bench.root / f"{self.subject.name}-{number}-{state}-{index}-{mode}.jsonl"
                ours = {}
                if mode is not None:
                    ours = {**self.preload, **second.variables(mode, beside, report, second.SPARE)}
                label = f"{program.name}, {mode or 'stock'}, {state}"
                client = clients.start(program.command, lane.pipe_directory, label, {**self.variables, **ours})
                running.append(_Running(program, mode, client, report))
        return _Lane(state, culprit, running)

    def _reach(self, event: str, lane: _Lane) -> None:
        """Wait until all have come so far; one that does not is left out."""
        for each in list(lane.running):
            try:
                each.client.wait_for(event, self.subject.start)
            except (SuiteError, TimeoutError) as error:
                self.errors.append(f"{each.label}: {error}")
                self.bench.say(self.errors[-1])
                lane.running.remove(each)

    def _strike(self, lane: _Lane) -> None:
        """Commit the fault and see it reach the stock programs; then see what became of ours."""
        busy = lane.state is State.BUSY
        if busy:
            for each in lane.running:
                each.client.go()
            self._reach("busy", lane)
        lane.culprit.go()
        lane.culprit.wait_for("injected", _COMMITTED)
        culprit = lane.culprit.finish(2 * _COMMITTED)
        if culprit.find(DIED) is None:
            raise SuiteError(f"the fault did not strike: {culprit.describe()}")
        time.sleep(_OVER)
        made = []
        for each in sorted(lane.running, key=lambda each: each.mode is not None):
            if not busy:
                each.client.go()
            reported = None
            outcome = idle.ended(each.client, self.subject.go_on)
            if each.mode is not None:
                reported = second.takeover(each.report)
            trial = Trial(each.program.name, each.mode, FAULT, outcome, reported)
            if each.mode is None and trial.went_on:
                raise SuiteError(f"the fault did not strike: {outcome.describe()}")
            made.append(trial)
            self.bench.say(f"{lane.state}, {each.label}: {trial.describe()}")
        self.trials[lane.state] += made

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        made = 0
        for state in State:
            made += sum(each.mode is not None for each in self.trials[state])
            for program in self.programs.get(state, ()):
                alone = self.undisturbed.get((program.name, state), Undisturbed(program.name, ()))
                yield from trials.rows(
                    program.name,
                    self.trials[state],
                    alone,
                    self.rounds,
                    program.note,
                    state=state,
                    modes=self.modes(state),
                )
        if self.missing:
            yield skipped(self.subject.title, self.missing)
        else:
            wanted = sum(len(self.programs[state]) * len(self.modes(state)) for state in self.programs) * self.rounds
            yield not_made("second driver", self.errors, made, wanted)


def _programs(bench: Bench, state: State) -> list[Program]:
    if bench.programs.simulated:
        return [Program(programs.CPP, (sys.executable, str(programs.SIMULATED), state.value))]
    program = str(CUDA / "torch_compiled.py")
    return [
        Program(name, (sys.executable, program, kind, state.value))
        for kind, name in KINDS.items()
        if not bench.quick or kind in QUICK_KINDS
    ]


PYTORCH: Final = Subject("compiled", "PyTorch programs with graphs", _programs, preloaded.no_torch)


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    study = Study(bench, PYTORCH)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "compiled", "PyTorch programs with graphs, compiled kernels or cudaMallocAsync at a neighbour's SM fault", measure
)
