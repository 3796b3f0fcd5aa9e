"""Every fault in every arm, several times over; what is there when time is over is what counts."""

import datetime
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from fault_injection import catalog
from fault_injection.catalog import Fault
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding
from tests.bench.core.guard import Options
from tests.bench.results import origin
from tests.bench.results.schema import ResultError
from tests.bench.simulated import SimulatedPrograms
from tests.bench.triage import rows
from tests.bench.triage.cells import ARMS, STOCK, Cell, CellFile, Key, file_name, merged, write
from tests.bench.triage.incidents import Incidents
from tests.bench.triage.injection import Site, make
from tests.bench.triage.kernel_log import KMSG, KernelLog

NAME: Final = "triage"
_BUNDLES: Final = 2
"""Incidents of each fault class for which the evidence is kept for replay."""


@dataclass(frozen=True)
class Plan:
    """What to inject, how often, until when, and where the cells go."""

    faults: tuple[Fault, ...] = catalog.FAULTS
    arms: tuple[str, ...] = ARMS
    repetitions: int = 5
    seconds: float = 500.0
    """No cell is begun after these; the runner's own deadline is the last resort."""
    before: tuple[CellFile, ...] = ()
    """Earlier runs that this one goes on with."""
    out: Path | None = None

    def keys(self, repetitions: int) -> list[Key]:
        """All cells of the plan: whole repetitions first, so that a run cut short has every fault."""
        return [(fault.name, arm, n) for arm in self.arms for n in range(repetitions) for fault in self.faults]


@dataclass
class Matrix:
    """One run of a plan."""

    bench: Bench
    plan: Plan
    cells: dict[Key, Cell] = field(default_factory=dict)
    bundles: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self) -> list[Finding]:
        """Make the cells that are missing; the rows of all there are."""
        plan = self.plan
        earlier = merged(plan.before).cells if plan.before else ()
        self.cells = {cell.key: cell for cell in earlier}
        keys = plan.keys(self.bench.runs(plan.repetitions, 1))
        missing = [key for key in keys if key not in self.cells or self.cells[key].error]
        limit = time.monotonic() + plan.seconds
        try:
            with KernelLog(self._kernel_log()) as log:
                for arm in plan.arms:
                    self._arm(arm, [key for key in missing if key[1] == arm], log, limit)
        finally:  # also when the run is stopped: what was measured is kept
            self._keep()
        left = len([key for key in keys if key not in self.cells])
        return list(rows.findings(list(self.cells.values()), left))

    def _kernel_log(self) -> str:
        """A simulated fault leaves no line in this machine's log: whatever is there is not of this run."""
        return os.devnull + "/none" if isinstance(self.bench.programs, SimulatedPrograms) else KMSG

    def _arm(self, arm: str, keys: Sequence[Key], log: KernelLog, limit: float) -> None:
        """One arm's cells on one daemon, which is replaced when a cell ended it or could not be made."""
        waiting = list(keys)
        while waiting and time.monotonic() < limit:
            with ExitStack() as stack:
                site = self._site(arm, stack)
                usable = True
                while waiting and usable and time.monotonic() < limit:
                    key = waiting.pop(0)
                    usable = self._cell(site, log, key)

    def _site(self, arm: str, stack: ExitStack) -> Site:
        if arm == STOCK:
            stock = stack.enter_context(self.bench.stock())
            self.bench.warm_up(stock)
            return Site(arm, stock, stock.pipe_directory, None)
        # What a fault does and which client is named is measured here; what keeps it from hurting others, elsewhere.
        guard = stack.enter_context(self.bench.guard(options=Options(crash_hold=0)))
        self.bench.warm_up(guard)
        lane, _ = guard.lane()
        run_directory = Path(lane.pipe_directory).parents[2]  # RUN/lanes/NAME/pipe
        incidents = stack.enter_context(Incidents(run_directory))
        return Site(arm, guard, Path(lane.pipe_directory), incidents)

    def _cell(self, site: Site, log: KernelLog, key: Key) -> bool:
        """Make one; whether the daemon can take the next."""
        fault = catalog.named(key[0])
        try:
            cell = make(self.bench, site, log, fault, key[2])
        except (SuiteError, OSError, ValueError) as error:  # TimeoutError is an OSError
            cell = Cell(*key, error=str(error)[:500])
        self.cells[key] = cell
        self.bench.say(f"{cell.arm} {cell.fault} #{cell.repetition}: {describe(cell)}")
        if site.incidents is not None:
            self._bundle(site.incidents, fault, cell)
        return not cell.error and fault.by_client

    def _bundle(self, incidents: Incidents, fault: Fault, cell: Cell) -> None:
        kept = sum(catalog.named(name.split("-")[0]).fault_class == fault.fault_class for name in self.bundles)
        if self.plan.out is None or cell.verdict is None or kept >= _BUNDLES or not cell.verdict.incidents:
            return
        if bundle := incidents.export(cell.verdict.incidents[0]):
            self.bundles[f"{cell.fault}-{cell.repetition}"] = bundle

    def _keep(self) -> None:
        out = self.plan.out
        if out is None:
            return
        gpu = origin.gpu()
        try:
            commit = origin.commit()
        except ResultError:
            commit = "unknown"
        date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        made = tuple(sorted(self.cells.values(), key=lambda cell: cell.key))
        out.mkdir(parents=True, exist_ok=True)
        write(out / file_name(date), CellFile(date, commit, gpu.name, gpu.driver, gpu.cuda, made))
        if self.bundles:
            (out / f"triage-bundles-{date.replace('-', '')}.json").write_bytes(msgspec.json.encode(self.bundles))


def describe(cell: Cell) -> str:
    """One line of progress."""
    if cell.skipped or cell.error:
        return f"skipped: {cell.skipped}" if cell.skipped else f"error: {cell.error}"
    verdict = cell.verdict
    said = f"; guard: {verdict.culprit or 'no verdict'} {verdict.fault_class} {verdict.why}" if verdict else ""
    return f"{'; '.join(cell.effects) or 'NO EFFECT'}{said}"


def measurement(plan: Plan) -> Measurement:
    """The matrix as a suite's one measurement."""

    def measure(bench: Bench) -> Iterator[Finding]:
        yield from Matrix(bench, plan).run()

    return Measurement(NAME, f"{len(plan.faults)} faults, {' and '.join(plan.arms)}, three innocents", measure)
