"""How often each way names the culprit of an SM fault, how soon, and when the lane takes clients again afterwards."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fault_injection import catalog
from fault_injection.catalog import Fault
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, none_of, sampled
from tests.bench.core.guard import Guard
from tests.bench.results.schema import Row
from tests.bench.simulated import SimulatedPrograms
from tests.bench.sm.methods import METHODS, NOTHING, Method
from tests.bench.triage.cells import Cell
from tests.bench.triage.incidents import Incidents, wait_until
from tests.bench.triage.injection import Site, make
from tests.bench.triage.kernel_log import KMSG, KernelLog
from tests.bench.triage.matrix import describe
from tests.bench.triage.verdict import RIGHT, WRONG

REPETITIONS: Final = 5
FULL_DUMP_REPETITIONS: Final = 1
"""Of the way that is there for comparison: each takes seconds."""
_STAND: Final = 15.0
"""Seconds for the sentinel to stand beside clients that came."""
_SHARE: Final = 0.95

FAULTS: Final = tuple(fault for fault in catalog.FAULTS if fault.fault_class == "sm")


@dataclass(frozen=True)
class Trial:
    """One cell, and how long the lane took no clients afterwards, in ms; None if it never took one again."""

    cell: Cell
    recovered_ms: float | None


def measure(bench: Bench) -> Iterator[Finding]:
    """One guard a way; all faults, whole repetitions first."""
    simulated = isinstance(bench.programs, SimulatedPrograms)
    best = 0.0
    wrong = total = 0
    for method in METHODS:
        if simulated and method is not NOTHING:
            continue  # a simulated client writes no dumps
        repetitions = FULL_DUMP_REPETITIONS if method.name == "full dumps" else REPETITIONS
        trials = _trials(bench, method, bench.runs(repetitions, 1), KMSG if not simulated else os.devnull + "/none")
        yield from _rows(method, trials)
        verdicts = [trial.cell.verdict for trial in trials if trial.cell.verdict]
        total += len(verdicts)
        wrong += sum(verdict.culprit == WRONG for verdict in verdicts)
        if verdicts:
            best = max(best, sum(verdict.culprit == RIGHT for verdict in verdicts) / len(verdicts))
        if method is NOTHING:
            yield from _untold(trials)
    yield none_of("false accusations, all ways", wrong, total, "faults")
    holds = best >= _SHARE
    yield Finding(Row(name="best way: culprit right", value=best, unit="", bar=f">= {_SHARE}", holds=holds, runs=total))


@dataclass(frozen=True)
class _Arm:
    """One way at work: where its clients dump, and the log that is the suite's own witness."""

    bench: Bench
    method: Method
    cores: Path
    log: KernelLog

    def trials(self, repetitions: int) -> list[Trial]:
        """All faults, on one guard for as long as its lane takes clients."""
        waiting = [(fault, number) for number in range(repetitions) for fault in FAULTS]
        trials = []
        while waiting:
            with ExitStack() as stack:
                guard = stack.enter_context(self.bench.guard(options=self.method.options(self.cores)))
                self.bench.warm_up(guard)
                site = self._site(guard, stack)
                usable = True
                while waiting and usable:
                    trials.append(self._trial(site, *waiting.pop(0)))
                    usable = trials[-1].recovered_ms is not None
        return trials

    def _site(self, guard: Guard, stack: ExitStack) -> Site:
        lane, _ = guard.lane()
        pipe = Path(lane.pipe_directory)
        incidents = stack.enter_context(Incidents(pipe.parents[2]))

        def stands() -> None:
            if not wait_until(guard.has_sentinel, time.monotonic() + _STAND):
                raise SuiteError(f"no sentinel on the lane within {_STAND:g} s")

        prepared = stands if self.method.sentinel else lambda: None
        return Site(self.method.name, guard, pipe, incidents, prepared, aborts=self.method.environment is not None)

    def _trial(self, site: Site, fault: Fault, number: int) -> Trial:
        try:
            with self.method.opted_in(self.cores):
                cell = make(self.bench, site, self.log, fault, number)
        except (SuiteError, OSError, ValueError) as error:  # TimeoutError is an OSError
            cell = Cell(fault.name, site.arm, number, error=str(error)[:500])
        began = time.monotonic()
        try:
            self.bench.warm_up(site.target)
            recovered = round((time.monotonic() - began) * 1000, 1)
        except (SuiteError, OSError):
            recovered = None
        for dump in self.cores.iterdir():
            dump.unlink()
        self.bench.say(f"{site.arm} {fault.name} #{number}: {describe(cell)}; a client runs after {recovered} ms")
        return Trial(cell, recovered)


def _trials(bench: Bench, method: Method, repetitions: int, log_path: str) -> list[Trial]:
    cores = Path(tempfile.mkdtemp(prefix="gpu-suite-cores-"))
    try:
        with KernelLog(log_path) as log:
            return _Arm(bench, method, cores, log).trials(repetitions)
    finally:
        shutil.rmtree(cores)


def _rows(method: Method, trials: Sequence[Trial]) -> Iterator[Finding]:
    made = [trial.cell for trial in trials if trial.cell.made and trial.cell.verdict]
    verdicts = [cell.verdict for cell in made if cell.verdict]
    right = [cell for cell in made if cell.verdict and cell.verdict.culprit == RIGHT]
    missed = sorted({cell.fault for cell in made if cell not in right})
    errors = [f"{trial.cell.fault}: {trial.cell.error}" for trial in trials if trial.cell.error]
    row = Row(
        name=f"{method.name}: culprit right",
        value=len(right),
        count=len(trials),
        unit="faults",
        bar="reported",
        holds=not errors,
        runs=len(trials),
    )
    yield Finding(row, f"not named: {', '.join(missed) or 'none'}{'; ' if errors else ''}{'; '.join(errors)}")
    named = [v.latency_ms for v in verdicts if v.culprit == RIGHT and v.latency_ms is not None]
    if named:
        yield sampled(f"{method.name}: injection to the culprit's name", named, unit="ms", bar="reported", holds=True)
    back = [trial.recovered_ms for trial in trials if trial.recovered_ms is not None]
    if back:
        yield sampled(f"{method.name}: a new client runs after", back, unit="ms", bar="reported", holds=True)
    stuck = len(trials) - len(back)
    yield none_of(f"{method.name}: lanes that took no client again", stuck, len(trials), "faults")


def _untold(trials: Sequence[Trial]) -> Iterator[Finding]:
    """Yield what the programs themselves could report: it takes their cooperation."""
    cells = [trial.cell for trial in trials if trial.cell.made]
    first = odd = 0
    for cell in cells:
        others = [innocent.after_ms for innocent in cell.innocents if innocent.after_ms is not None]
        first += cell.after_ms is not None and bool(others) and cell.after_ms < min(others)
        odd += cell.returned == 0 and all(innocent.code for innocent in cell.innocents)
    for name, count in (
        ("the first program to see its error is the culprit", first),
        ("the culprit alone is told success", odd),
    ):
        row = Row(name=name, value=count, count=len(cells), unit="faults", bar="reported", holds=True, runs=len(cells))
        yield Finding(row)


MEASUREMENT: Final = Measurement("accuracy", "SM faults with three innocents, by each way to find the culprit", measure)
