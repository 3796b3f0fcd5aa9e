"""Starts by warm workers of a pool: as many as there is time for, and a row for each figure as soon as it has all."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final

from mpsguard.images.pool.errors import PoolError
from tests.bench.checkpoint.place import device
from tests.bench.core.bench import Bench
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, none_of, not_measured, sampled
from tests.bench.core.gpu_memory import GpuMemory, gpu_memory, settled
from tests.bench.core.guard import Guard
from tests.bench.core.statistics import percentile
from tests.bench.start import laps
from tests.bench.start.laps import Figure, Step
from tests.bench.start.place import MIB, PREPARED, WITHIN, Made, Pool, Start, drop, patience, pool, spare, told
from tests.bench.start.plan import MOBILENET, Plan

_SHARED: Final = 1.25
_LIKE: Final = 0.87
_STEPS: Final = ("context", "pin", "addresses", "objects", "graph", "hooks", "cleared")
"""Of a preparation after its imports."""


def ours(bench: Bench, clients: Clients, guard: Guard, made: Made, *, kind: str, plan: Plan) -> Iterator[Finding]:
    """All rows of the pool; those for which no time was left say so."""
    instances = bench.runs(plan.instances, 2)
    workers = laps.workers_for(instances, len(os.sched_getaffinity(0)))
    budget = made.size + 4 * MIB
    # The last lap's workers end with the pool, which prepares no others then.
    with ExitStack() as last, gpu_memory(bench, guard) as memory:
        before = settled(memory)  # the program that made the image has just ended
        with pool(bench, clients, guard, made, kind, workers=workers, gpu=budget, pinned=budget, pins=False) as served:
            measured = _Measured(bench, plan, served, memory, before=before, workers=workers, instances=instances)
            yield from measured.laps(last)


class _Measured:
    """What is known so far."""

    def __init__(
        self,
        bench: Bench,
        plan: Plan,
        served: Pool,
        memory: GpuMemory,
        *,
        before: int,
        workers: int,
        instances: int,
    ) -> None:
        self._bench = bench
        self._plan = plan
        self._served = served
        self._name = served.made.names[0]
        self._memory = memory
        self._workers = workers
        self._instances = instances
        self._rounds = bench.runs(20, 1)
        self._before = before
        self._idle: float | None = None
        """GPU memory of a worker that waits and has pinned nothing."""
        self._pinned_idle: float | None = None
        """The same of one that has pinned the arena."""
        self._used = self._together = 0.0
        """GPU memory of one start, and of the others at once beside it."""
        self._starts: dict[Figure, list[Start]] = {figure: [] for figure in Figure}
        self._given: list[Start] = []
        self._why = ""

    def laps(self, last: ExitStack) -> Iterator[Finding]:
        """Make the starts, and yield the rows; connections of the last lap go to ``last``."""
        todo, took, number = laps.steps(self._rounds, self._instances, self._workers), 0.0, 0
        untold = list(Figure)
        while todo and not self._why:
            self._why = laps.shortage(spare(self._bench), took, f"another lap of {self._workers} starts") or ""
            if self._why:
                break
            lap, todo = laps.next_lap(todo, self._workers)
            began, number = time.monotonic(), number + 1
            with ExitStack() as connections:
                try:
                    self._lap(lap, connections, f"lap {number}", bring=number == 1)
                except (SuiteError, PoolError, OSError) as error:
                    self._why = str(error)
                following, _ = laps.next_lap(todo, self._workers)
                if following and not self._why:
                    self._served.let_workers_pin(laps.pins(following))
                else:
                    last.push(connections.pop_all())
            took = time.monotonic() - began
            if not self._why:
                known = [figure for figure in untold if laps.known(figure, todo)]
                untold = [figure for figure in untold if figure not in known]
                yield from self._rows(known)
        yield from self._rows(untold)
        wrong = sum(not self._served.right(self._name, start) for start in self._given)
        yield none_of(f"{self._plan.kind}: wrong answers of warm workers", wrong, len(self._given), "answers")
        yield from self._preparation()

    def _lap(self, lap: Sequence[Step], connections: ExitStack, name: str, *, bring: bool) -> None:
        began = time.monotonic()
        if bring:  # while the workers do their imports
            self._served.bring(self._name, patience(self._bench, WITHIN))
        self._served.wait(self._workers, patience(self._bench, PREPARED))
        prepared = time.monotonic()
        if self._idle is None:
            self._idle = (self._memory.used() - self._before) / self._workers
        elif self._pinned_idle is None and laps.pins(lap):
            # The image is on the GPU by now, as memory of the pool's.
            image = 0 if device(self._bench) == "cpu" else self._served.made.size
            self._pinned_idle = (self._memory.used() - self._before - image) / self._workers
        steps = _medians(self._served.notes()[-self._workers :], ("imports", *_STEPS))
        for step in lap:
            self._step(step, connections)
        self._bench.say(
            f"{self._plan.kind}: {name}: {prepared - began:.1f} s until {self._workers} workers wait ({told(steps)}), "
            f"{time.monotonic() - prepared:.1f} s for starts of {sum(step.workers for step in lap)}"
        )

    def _step(self, step: Step, connections: ExitStack) -> None:
        match step.figure:
            case Figure.MEMORY:
                empty = self._memory.used()
                one = self._start(step.how, connections)
                alone = self._memory.used()
                started = self._at_once(connections)
                self._used, self._together = alone - empty, self._memory.used() - alone
                self._starts[Figure.MEMORY].append(one)
                self._starts[Figure.AT_ONCE] += started
                for each in (one, *started):
                    drop(each)
            case Figure.AT_ONCE:
                started = self._at_once(connections)
                self._starts[Figure.AT_ONCE] += started
                for each in started:
                    drop(each)
            case figure:
                start = self._start(step.how, connections)
                if figure is not None:
                    self._starts[figure].append(start)
                drop(start)

    def _start(self, how: str, connections: ExitStack) -> Start:
        start = self._served.start(self._name, how)
        connections.callback(start.connection.close)
        self._given.append(start)
        return start

    def _at_once(self, connections: ExitStack) -> list[Start]:
        with ThreadPoolExecutor(self._instances) as threads:
            running = [threads.submit(self._served.start, self._name, "gpu") for _ in range(self._instances)]
        failed = [error for each in running if (error := each.exception()) is not None]
        started = [each.result() for each in running if each.exception() is None]
        for start in started:
            connections.callback(start.connection.close)
        self._given += started
        if failed:
            raise failed[0]
        return started

    def _rows(self, figures: Sequence[Figure]) -> Iterator[Finding]:
        made = self._served.made
        bytes_ms = 1e3 * made.size / made.rate
        of_bus = f"its {made.size / 1e9:.3g} GB need {bytes_ms:.1f} ms of the bus"
        pinned = self._plan.pinned if self._plan.of_bus is None else self._plan.of_bus * bytes_ms
        kind = f"{self._plan.kind}, ours"
        rows: dict[Figure, tuple[str, Callable[[str, list[Start]], Iterator[Finding]]]] = {
            Figure.MEMORY: (f"{self._plan.kind}: GPU memory of {self._instances} instances", self._memory_rows),
            Figure.PINNED: (f"{kind}, from pinned memory", partial(self._answered, bar=pinned, note=of_bus)),
            Figure.DEMAND: (
                f"{self._plan.kind}, on demand",
                partial(self._demand, bar=pinned if self._plan.of_bus is not None else None, note=of_bus),
            ),
            Figure.GPU: (f"{kind}, already on the GPU", partial(self._answered, bar=self._plan.gpu)),
            Figure.AT_ONCE: (f"{kind}, {self._instances} starts at once, on the GPU", self._answered),
        }
        for figure in figures:
            name, row = rows[figure]
            if self._starts[figure]:
                yield from row(name, self._starts[figure])
            else:
                yield not_measured(name, self._why)

    def _few(self, starts: Sequence[Start]) -> str:
        return f"{len(starts)} of {self._rounds}: {self._why}" if len(starts) < self._rounds else ""

    def _answered(self, name: str, starts: list[Start], bar: float | None = None, note: str = "") -> Iterator[Finding]:
        samples = [1e3 * start.seconds for start in starts]
        opened, filled, answered = (
            percentile([1e3 * start.told[key] for start in starts], 0.5) for key in ("opened", "filled", "answered")
        )
        steps = (
            f"in the worker: manifest read after {opened:.2f} ms, memory there after {filled:.2f}, "
            f"answered {answered:.2f}"
        )
        yield sampled(
            f"{name}: request to first answer",
            samples,
            unit="ms",
            bar="none: for comparison" if bar is None else f"p50 <= {bar:.4g}",
            holds=bar is None or percentile(samples, 0.5) <= bar,
            note="; ".join(filter(None, [spread(samples), steps, note, self._few(starts)])),
        )

    def _demand(self, name: str, starts: list[Start], bar: float | None, note: str) -> Iterator[Finding]:
        """The bar of the share is of the time that the whole image takes to arrive, in the same start."""
        shares = [start.told["answered"] / start.told["whole"] for start in starts]
        early = self._plan.early
        answered = 1e3 * percentile([start.told["answered"] for start in starts], 0.5)
        whole = [1e3 * start.told["answered"] for start in self._starts[Figure.PINNED]]
        graph = ", and has a CUDA graph" if any(note["recorded"] for note in self._served.notes()) else ""
        notes = [
            spread(shares, ""),
            f"answered after {answered:.1f} ms, layer by layer",
            f"{percentile(whole, 0.5):.1f} ms by a start that waits for the whole{graph}" if whole else "",
            self._few(starts),
            self._plan.needs,
        ]
        yield sampled(
            f"{name}: first answer over the arrival of the whole image",
            shares,
            unit="",
            bar="reported" if early is None else f"p50 <= {early:g}",
            holds=early is None or percentile(shares, 0.5) <= early,
            note="; ".join(filter(None, notes)),
        )
        yield from self._answered(f"{self._plan.kind}, ours, from pinned memory, on demand", starts, bar, note)

    def _memory_rows(self, name: str, _starts: list[Start]) -> Iterator[Finding]:
        if device(self._bench) == "cpu":
            # Host memory stands for the GPU's, and no counter has it.
            return
        weights, idle, used, together = float(self._served.made.size), self._idle or 0.0, self._used, self._together
        # The image stays on the GPU between two starts: neither number has it.
        own = (weights + max(together, 0.0)) / (weights + max(used, 0.0))
        processes = (weights + together + self._instances * idle) / (weights + used + idle)
        yield sampled(
            f"{name} over that of one, beside what each has as a worker that waits",
            [own],
            unit="",
            bar=f"<= {_SHARED:g}",
            holds=own <= _SHARED,
            note=f"the weights, {weights / 1e6:.0f} MB, are there once; {used / 1e6:.0f} MB more for one start, "
            f"{together / 1e6:.0f} MB for {self._instances}. With the workers' contexts, kernels and graphs: "
            f"{processes:.2f}",
        )
        resident = percentile([note["resident"] for note in self._served.notes()], 0.5)
        shared = 1 - weights / (weights + idle + resident)
        barred = self._plan is MOBILENET
        yield sampled(
            f"{self._plan.kind}: share of a program's memory that is in no image, since a worker of the framework "
            "has it",
            [shared],
            unit="",
            bar=f">= {_LIKE:g}" if barred else "reported",
            holds=not barred or shared >= _LIKE,
            note=f"a second model's image adds {weights / 1e6:.0f} MB; a worker has {resident / 1e6:.0f} MB of host "
            f"memory of its own, and {idle / 1e6:.0f} MB on the GPU",
        )

    def _preparation(self) -> Iterator[Finding]:
        notes = self._served.notes()
        name = f"{self._plan.kind}: preparation of a worker, after its imports"
        if not notes:
            yield not_measured(name, self._why)
            return
        pinning = [note for note in notes if note["pins"]]
        counted = pinning or notes
        steps, before = told(_medians(counted, _STEPS)), told(_medians(counted, ["imports"]))
        missed = "" if all(note["pinned"] for note in pinning) else "NOT PINNED: "
        idle = " and ".join(
            f"{each / 1e6:.0f} MB {having}"
            for each, having in ((self._idle, "with nothing pinned"), (self._pinned_idle, "with the arena pinned"))
            if each is not None
        )
        yield sampled(
            name,
            [note["all"] for note in counted],
            unit="s",
            bar="none: stated",
            holds=True,
            note=f"{missed}p50 {steps}; {before} before, once for all; {self._workers} workers at once; "
            f"{sum(note['recorded'] for note in notes):.0f} of {len(notes)} with a CUDA graph; an idle worker's GPU "
            f"memory: {idle or 'unknown'}. Not counted: {len(notes) - len(counted)} that pinned nothing, since they "
            "only answered from memory on the GPU",
        )


def _medians(notes: Sequence[Mapping[str, float]], steps: Sequence[str]) -> dict[str, float]:
    return {step: percentile([note[step] for note in notes], 0.5) for step in steps}


def spread(samples: Sequence[float], unit: str = "ms") -> str:
    """p50 and p99, and of how many."""
    told_in = f" {unit}" if unit else ""
    return f"p50 {percentile(samples, 0.5):.4g}, p99 {percentile(samples, 0.99):.4g}{told_in} of {len(samples)}"
