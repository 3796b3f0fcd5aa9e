"""Programs that are idle at a neighbour's SM fault: which go on, with which results, and how long it takes."""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from fault_injection import catalog
from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DIED, Outcome
from tests.bench.core.finding import Finding
from tests.bench.core.gpu_memory import MIB, gpu_memory, settled
from tests.bench.core.programs import Work
from tests.bench.isolation import preloaded
from tests.bench.isolation.partial import kept, not_made, skipped
from tests.bench.results.schema import Row
from tests.bench.second_driver import programs, second, trials
from tests.bench.second_driver.programs import CPP, TORCH, Program, State
from tests.bench.second_driver.second import Mode
from tests.bench.second_driver.trials import Trial, Undisturbed

FAULTS: Final = tuple(fault.name for fault in catalog.FAULTS if fault.fault_class == "sm")
"""A round commits each of them once, each in a lane of its own."""
ROUNDS: Final = 5
QUICK_FAULTS: Final = ("trap", "misaligned")
UNDISTURBED, QUICK_UNDISTURBED = 2, 1
_START: Final = 120.0
_GO_ON: Final = 30.0
_SAVED: Final = 0.5
"""Seconds in which an idle program's variables are saved, and a hot second driver is ready."""
_COMMITTED: Final = 20.0
_OVER: Final = 0.5
"""Seconds after the culprit's end in which the fault reaches all; 0.43 from the fault on were seen."""


@dataclass
class _Lane:
    """A lane in which one fault will be committed, and its clients."""

    fault: str
    target: Target
    culprit: Client
    stock: list[tuple[Program, Client]] = field(default_factory=list)
    ours: list[tuple[Program, Mode, Client]] = field(default_factory=list)

    @property
    def clients(self) -> list[Client]:
        """All but the culprit."""
        return [*(each[-1] for each in self.stock), *(each[-1] for each in self.ours)]

    def wait(self) -> None:
        """Until all are idle."""
        self.culprit.wait_for("first_kernel", _START)
        for client in self.clients:
            client.wait_for("idle", _START)

    def begin(self) -> None:
        """Give all the word, and wait until each has work in flight."""
        for client in self.clients:
            client.go()
        for client in self.clients:
            client.wait_for("busy", _START)


@dataclass
class Study:
    """All of it; `rows` shows what there is at any time."""

    bench: Bench
    state: State = State.IDLE
    """What the programs do at the fault."""
    spare: int | None = None
    """MiB for copies of a program's memory."""
    programs: Sequence[Program] = ()
    missing: str = ""
    """Why there is no PyTorch."""
    preload: Mapping[str, str] = field(default_factory=dict)
    undisturbed: dict[str, Undisturbed] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    memory: float | None = None
    """MiB that a hot second driver takes."""
    made: int = 0
    """Faults that were seen to strike."""
    errors: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> list[tuple[str, ...]]:
        """The faults to commit."""
        return [QUICK_FAULTS] if self.bench.quick else [FAULTS] * ROUNDS

    def make(self) -> None:
        """Build, then the memory, then all rounds."""
        self.programs, self.missing = programs.all_of_them(self.bench, self.state)
        self.preload = preloaded.variables(self.bench)
        with self.bench.stock() as beside:
            self.bench.warm_up(beside)
            if self.state is State.IDLE:
                self._measure_memory(beside)
            for number, faults in enumerate(self.rounds):
                with ExitStack() as stack:
                    first = [stack.enter_context(self.bench.stock()) for _ in faults]
                    # Ended before their daemons.
                    clients = stack.enter_context(Clients())
                    self._round(number, list(zip(faults, first, strict=True)), beside, clients)

    def _measure_memory(self, beside: Target) -> None:
        with self.bench.stock() as lane, gpu_memory(self.bench, lane) as memory, Clients() as clients:
            self.bench.warm_up(lane)
            used = [settled(memory, quiet=1.0)]
            # Both stay: of a client that has ended, the memory is freed some time later.
            for mode in (Mode.COLD, Mode.HOT):
                variables = {**self.preload, **second.variables(mode, beside)}
                client = clients.start(self.programs[0].command, lane.pipe_directory, f"memory, {mode}", variables)
                client.wait_for("idle", _START)
                used.append(settled(memory, quiet=1.0))
            cold, hot = used[1] - used[0], used[2] - used[1]
            self.memory = (hot - cold) / MIB
            self.bench.say(f"memory of an idle program: {cold / MIB:.0f} MiB cold, {hot / MIB:.0f} MiB hot")

    def _round(self, number: int, lanes: Sequence[tuple[str, Target]], beside: Target, clients: Clients) -> None:
        """All clients of all lanes start together; then one lane after the other has its fault."""
        begin = time.monotonic()
        alone = [] if number else self._start_undisturbed(beside, clients)
        started = [self._start(number, fault, lane, beside, clients) for fault, lane in lanes]
        for each in started:
            each.wait()
        self._finish_undisturbed(alone)
        self.bench.say(f"round {number + 1}: all are idle after {time.monotonic() - begin:.1f} s")
        time.sleep(_SAVED)
        for each in started:
            try:
                self._strike(number, each)
            except (SuiteError, TimeoutError) as error:
                self.errors.append(f"{each.fault}: {error}")
                self.bench.say(f"{each.fault}: {error}")

    def _start_undisturbed(self, lane: Target, clients: Clients) -> list[tuple[Program, Client]]:
        count = self.bench.runs(UNDISTURBED, QUICK_UNDISTURBED)
        return [
            (program, clients.start(program.command, lane.pipe_directory, f"{program.name}, undisturbed"))
            for program in self.programs
            for _ in range(count)
        ]

    def _finish_undisturbed(self, started: Sequence[tuple[Program, Client]]) -> None:
        for _, client in started:
            client.wait_for("idle", _START)
            client.go()
        ended = [(program.name, client.finish(_GO_ON)) for program, client in started]
        for name in {name for name, _ in ended}:
            digests = tuple(trials.digest(outcome) for each, outcome in ended if each == name)
            self.undisturbed[name] = Undisturbed(name, digests)

    def _start(self, number: int, fault: str, lane: Target, beside: Target, clients: Clients) -> _Lane:
        work = Work(seconds=_COMMITTED, controlled=True, fault=fault)
        culprit = clients.start(self.bench.programs.worker(work), lane.pipe_directory, f"culprit, {fault}")
        made = _Lane(fault, lane, culprit)
        for program in self.programs:
            plain = clients.start(program.command, lane.pipe_directory, f"{program.name}, stock")
            made.stock.append((program, plain))
            for mode in Mode:
                report = self.bench.root / self._report(number, fault, program, mode)
                variables = {**self.preload, **second.variables(mode, beside, report, self.spare)}
                client = clients.start(program.command, lane.pipe_directory, f"{program.name}, {mode}", variables)
                made.ours.append((program, mode, client))
        return made

    def _report(self, number: int, fault: str, program: Program, mode: Mode) -> str:
        return f"second-{number}-{fault}-{self.programs.index(program)}-{mode}.jsonl"

    def _strike(self, number: int, lane: _Lane) -> None:
        """Commit the fault and see it reach the stock programs; then give the word to each of ours, one at a time.

        Those that are to be busy have it before the fault.
        """
        busy = self.state is State.BUSY
        if busy:
            lane.begin()
        lane.culprit.go()
        lane.culprit.wait_for("injected", _COMMITTED)
        culprit = lane.culprit.finish(2 * _COMMITTED)
        if culprit.find(DIED) is None:
            raise SuiteError(f"the fault did not strike: {culprit.describe()}")
        time.sleep(_OVER)
        for program, client in lane.stock:
            if not busy:
                client.go()
            stock = Trial(program.name, None, lane.fault, client.finish(_GO_ON))
            if stock.went_on:
                raise SuiteError(f"the fault did not strike: {stock.outcome.describe()}")
            self.trials.append(stock)
        self.made += 1
        for program, mode, client in lane.ours:
            if not busy:
                client.go()
            outcome = ended(client, _GO_ON)
            reported = second.takeover(self.bench.root / self._report(number, lane.fault, program, mode))
            trial = Trial(program.name, mode, lane.fault, outcome, reported)
            self.trials.append(trial)
            self.bench.say(f"{lane.fault}, {program.name}, {mode}: {trial.describe()}")

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        wanted = sum(map(len, self.rounds))
        for program in self.programs:
            alone = self.undisturbed.get(program.name, Undisturbed(program.name, ()))
            if self.trials:
                yield from trials.rows(program.name, self.trials, alone, wanted, program.note, state=self.state)
        if self.missing:
            yield skipped(TORCH, self.missing)
        if self.programs:
            yield not_made("second driver", self.errors, self.made, wanted)
        if self.memory is not None:
            yield second_context(self.memory)


def ended(client: Client, within: float) -> Outcome:
    """How one of ours ended; one that hangs has not gone on, and is killed."""
    try:
        return client.finish(within)
    except SuiteError as error:
        return Outcome(client.label, client.pid, -signal.SIGKILL, (), (str(error),))


def second_context(mebibytes: float) -> Finding:
    """The row of what a hot second driver costs all the time."""
    name = f"{CPP}: GPU memory of a hot second driver beyond a cold one, idle"
    row = Row(name=name, value=float(f"{mebibytes:.4g}"), unit="MiB", bar="reported", holds=True, runs=1)
    return Finding(row, "by NVML", samples=(row.value,))


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "idle", "unmodified programs, idle at a neighbour's SM fault, with a second driver and on stock MPS", measure
)
