"""From a fault to the next operation and the next token at a standby, and whether the answers are the same.

Services stream tokens to network clients all the while; a co-tenant on their lane does something wrong, over and over.
`vault`: weights and cache are mapped in the standby. `reload`: it sleeps with a context, and the weights in pinned
memory of the host.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, all_of, none_of, sampled
from tests.bench.core.guard import Options
from tests.bench.core.statistics import percentile
from tests.bench.failover.program import Service
from tests.bench.failover.rounds import Crowd, Samples
from tests.bench.failover.streams import Answer, Streams, compare, reference
from tests.bench.isolation.partial import kept

SM: Final = ("misaligned", "shared", "illegal", "stack")
MMU: Final = ("null", "far", "readonly", "near")
KILL: Final = "SIGKILL of the active process"
_FAULTS: Final = {"SM faults": SM, "MMU faults": MMU, "trap": ("trap",), KILL: ()}
ENOUGH: Final = 20
"""Takeovers a cell must have."""
SM_P50, SM_P99, MMU_P50 = 20.0, 50.0, 170.0
"""Bars in ms, from the injection to the first finished operation."""


@dataclass(frozen=True)
class Plan:
    """One model in one mode."""

    model: str
    mode: str
    services: int
    clients: int
    tokens: int
    rounds: Mapping[str, int]
    """By class of faults; each round is a takeover of every service."""
    seconds: float = 240.0
    """For the faults of one class: the rounds that are not begun then are not made."""


@dataclass(frozen=True)
class _Cell:
    """One class of faults."""

    name: str
    faults: Sequence[str]
    rounds: int
    samples: Samples = field(default_factory=Samples)


@dataclass
class _Run:
    plan: Plan
    bench: Bench
    cells: Sequence[_Cell]
    answers: list[Answer]
    expected: dict[int, bytes]
    step: float = math.nan
    """Milliseconds between two tokens of an undisturbed answer."""

    def make(self) -> None:
        device = "cpu" if self.bench.programs.simulated else "cuda"
        with ExitStack() as stack:
            guard = stack.enter_context(self.bench.guard(options=Options(standby=True, host_memory=device == "cpu")))
            directory = self.bench.root / f"{self.plan.model}-{self.plan.mode}-{self.plan.services}"
            directory.mkdir()
            services = []
            for number in range(self.plan.services):
                name = f"{self.plan.model}-{number}"
                service = Service(guard, directory, name, model=self.plan.model, mode=self.plan.mode, device=device)
                stack.callback(service.program.close)
                services.append(service)
            streams = [Streams(s.address, self.plan.clients, self.plan.tokens) for s in services]
            crowd = Crowd(self.bench, guard, services, streams)
            self.bench.say(f"{self.plan.model} {self.plan.mode}: guarded after {crowd.wait():.1f} s")
            self.expected.update(reference(services[0].address, self.plan.tokens))
            for each in streams:
                each.start()
            try:
                for cell in self.cells:
                    self._faults(cell, crowd)
            finally:
                for each in streams:
                    with contextlib.suppress(SuiteError):
                        each.stop()
                    self.answers.extend(each.answers)
                self.step = _usual_step(self.answers)

    def _faults(self, cell: _Cell, crowd: Crowd) -> None:
        due = time.monotonic() + self.plan.seconds
        for number in range(self.bench.runs(cell.rounds, 1)):
            if time.monotonic() > due:
                cell.samples.errors.append(f"{number} rounds in {self.plan.seconds:g} s")
                return
            if cell.name == KILL:
                crowd.kill(cell.samples)
            else:
                crowd.fault(cell.faults[number % len(cell.faults)], cell.samples)
            self.bench.say(f"  {cell.name} {number}: {cell.samples.last()}")

    def rows(self) -> Iterator[Finding]:
        title = f"{self.plan.model}, {self.plan.mode}" + (", alone" if self.plan.services == 1 else "")
        for cell in self.cells:
            yield from self._cell_rows(title, cell)
        if self.plan.mode == "vault":
            right, asked, wrong = compare(self.answers, self.expected)
            takeovers = sum(len(cell.samples.operation) for cell in self.cells)
            yield none_of(
                f"{title}: answers that are not the undisturbed ones, over {takeovers} takeovers",
                asked - right,
                asked,
                "answers",
                note="; ".join(wrong[:5]),
            )

    def _cell_rows(self, title: str, cell: _Cell) -> Iterator[Finding]:
        found = cell.samples
        if not found.operation:
            yield all_of(f"{title}, {cell.name}: takeovers", 0, ENOUGH, "takeovers", note="; ".join(found.errors))
            return
        # The median, as it is printed, and not the value below it.
        p50, p99 = median(found.operation), percentile(found.operation, 0.99)
        bar, holds = _bar(self.plan.mode, cell.name, p50)
        each = {
            kind: [v for k, v in zip(found.kinds, found.operation, strict=True) if k == kind] for kind in found.kinds
        }
        kinds = ", ".join(f"{kind} {median(values):.1f}" for kind, values in each.items())
        note = (
            f"{len(found.operation)} takeovers ({kinds}); p99 {p99:.1f} ms; "
            f"promoted after {median(found.promoted):.1f} ms, with its connections after "
            f"{median(found.connected):.1f} ms; "
            f"next standby ready after {median(found.guarded or [math.nan]):.1f} s; {'; '.join(found.errors)}"
        )
        yield sampled(
            f"{title}, {cell.name}: fault to first finished operation (p50)",
            found.operation,
            unit="ms",
            bar=bar,
            holds=holds and len(found.operation) >= ENOUGH,
            note=note,
        )
        if found.sign:
            yield sampled(
                f"{title}, {cell.name}: fault to the driver's first word of it",
                found.sign,
                unit="ms",
                bar="reported: nothing can be done before",
                holds=True,
            )
        if self.plan.mode == "vault" and cell.name.startswith("SM"):
            yield sampled(
                f"{title}, {cell.name}: fault to first finished operation (p99)",
                [p99],
                unit="ms",
                bar=f"p99 <= {SM_P99:g} ms",
                holds=p99 <= SM_P99 and len(found.operation) >= ENOUGH,
            )
        yield sampled(
            f"{title}, {cell.name}: fault to next token on the wire",
            found.token,
            unit="ms",
            bar="reported",
            holds=True,
            note=f"a token every {self.step:.1f} ms when nobody disturbs; p99 {percentile(found.token, 0.99):.1f} ms",
        )
        if found.silence:
            yield sampled(
                f"{title}, {cell.name}: longest silence of an answer",
                found.silence,
                unit="ms",
                bar="reported",
                holds=True,
            )


def _bar(mode: str, cell: str, p50: float) -> tuple[str, bool]:
    if mode != "vault":
        return "reported beside the vault", True
    if cell.startswith("SM"):
        return f"p50 <= {SM_P50:g} ms", p50 <= SM_P50
    if cell.startswith("MMU"):
        return f"p50 <= {MMU_P50:g} ms", p50 <= MMU_P50
    return "reported", True


def _usual_step(answers: Sequence[Answer]) -> float:
    gaps = [b - a for answer in answers for a, b in itertools.pairwise(answer.came)]
    return median(gaps) / 1e6 if gaps else math.nan


def measure(plan: Plan, bench: Bench) -> Iterator[Finding]:
    """All classes of faults, one after the other, on the same services."""
    if bench.programs.simulated:
        plan = Plan("tiny-gpt2", plan.mode, services=1, clients=2, tokens=40, rounds={KILL: 2})
    cells = [_Cell(name, _FAULTS[name], rounds) for name, rounds in plan.rounds.items()]
    run = _Run(plan, bench, cells, [], {})
    yield from kept(run.make, run.rows)


def _measurement(name: str, what: str, plan: Plan) -> Measurement:
    made: Callable[[Bench], Iterator[Finding]] = partial(measure, plan)
    return Measurement(name, what, made)


_GPT2: Final = Plan(
    "gpt2", "vault", services=4, clients=4, tokens=200, rounds={"SM faults": 9, "MMU faults": 6, "trap": 5, KILL: 5}
)
_GPT2_ALONE: Final = replace(_GPT2, services=1, rounds={"SM faults": ENOUGH}, seconds=360.0)
"""A round takes 13 s, most of it until the next standby is ready."""
_LLAMA: Final = Plan("llama-7b", "vault", services=3, clients=2, tokens=100, rounds={"SM faults": 7, "MMU faults": 7})
_LLAMA_ALONE: Final = replace(_LLAMA, services=1, rounds={"SM faults": ENOUGH}, seconds=360.0)
_GPT2_RELOAD: Final = replace(_GPT2, mode="reload", rounds={"SM faults": 5})
_LLAMA_RELOAD: Final = replace(_LLAMA, mode="reload", services=2, rounds={"SM faults": 10}, seconds=330.0)
"""Two: each has its weights in pinned memory of the host twice, once for the active and once for the standby."""

MEASUREMENTS: Final = (
    _measurement("gpt2", "GPT-2 small: fault to next operation and token", _GPT2),
    _measurement("gpt2_alone", "one GPT-2 service alone with the culprit: the driver is quicker then", _GPT2_ALONE),
    _measurement("llama", "a 7B model: the same", _LLAMA),
    _measurement("llama_alone", "one 7B service alone with the culprit", _LLAMA_ALONE),
    _measurement("gpt2_reload", "a standby that must reload, GPT-2 small", _GPT2_RELOAD),
    _measurement("llama_reload", "a standby that must reload, 7B", _LLAMA_RELOAD),
)
