"""How soon the GPU memory of a client that has ended is free again: in order, killed while idle, crashed at work."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.gpu_memory import GpuMemory, gpu_memory
from tests.bench.core.guard import Options
from tests.bench.isolation import culprit
from tests.bench.isolation.culprit import CLEAN, KILL, KILL_IDLE, Kind
from tests.bench.isolation.innocents import COUNT, Innocents
from tests.bench.isolation.partial import kept, not_made

BYTES: Final = 1 << 30
"""What the culprit holds."""
BAR_MS: Final = 50.0
CRASH_HOLD: Final = 3.0
CRASH_BAR_MS: Final = 1000 * CRASH_HOLD + 500
IN_FLIGHT: Final = 1.0
REPETITIONS, QUICK_REPETITIONS = 20, 2
FEW, QUICK_FEW = 3, 1
_FREE: Final = 20.0
"""Seconds after which memory that is still taken counts as lost."""
_PAUSE: Final = 0.0005
_SETTLED: Final = 0.5
_ERRORS: Final = 3
_WATCH: Final = 0.4
"""Seconds in which the innocents die of what was let go, if they do."""


@dataclass(frozen=True)
class Case:
    """One way to end, the guard's configuration, and the limit."""

    name: str
    kind: Kind
    options: Options
    beside: bool
    """Whether innocents are at work; else the GPU has nothing to do but the culprit's."""
    bar_ms: float | None
    in_flight: float | None = None


ORDERLY: Final = Case("end in order beside busy innocents", CLEAN, Options(), True, BAR_MS)
IDLE: Final = Case("SIGKILL while idle, idle GPU", KILL_IDLE, Options(), False, None)
BUSY: Final = Case(
    f"SIGKILL, kernel of {IN_FLIGHT:g} s, crash_hold {CRASH_HOLD:g} s, beside busy innocents",
    KILL,
    Options(crash_hold=CRASH_HOLD),
    True,
    CRASH_BAR_MS,
    IN_FLIGHT,
)
CASES: Final = ((ORDERLY, REPETITIONS, QUICK_REPETITIONS), (BUSY, FEW, QUICK_FEW), (IDLE, FEW, QUICK_FEW))
"""In their order, with how many repetitions, and how many of a quick run."""


@dataclass
class Times:
    """Milliseconds from the end of the process to its memory being free, one for each repetition that was made."""

    case: Case
    wanted: int
    each: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[Finding]:
        """What there is; a limit holds for every single one."""
        case = self.case
        yield not_made(f"memory, {case.name}", self.errors, len(self.each), self.wanted)
        if self.each:
            held = case.bar_ms is None or max(self.each) <= case.bar_ms
            yield sampled(
                f"1 GiB free after {case.name}",
                self.each,
                unit="ms",
                bar="reported" if case.bar_ms is None else f"every one <= {case.bar_ms:g} ms",
                holds=held and len(self.each) == self.wanted,
            )


@dataclass
class Study:
    """The three cases, one guard each."""

    bench: Bench
    made: list[Times] = field(default_factory=list)

    def make(self) -> None:
        """All of them."""
        for case, full, quick in CASES:
            times = Times(case, self.bench.runs(full, quick))
            self.made.append(times)
            self._case(case, times)

    def _case(self, case: Case, times: Times) -> None:
        with (
            self.bench.guard(options=case.options) as guard,
            Clients() as clients,
            gpu_memory(self.bench, guard) as memory,
        ):
            innocents = Innocents(self.bench, guard, clients)
            while len(times.each) + len(times.errors) < times.wanted and len(times.errors) < _ERRORS:
                if case.beside:
                    innocents.ready()
                try:
                    ms = 1000 * _one(self.bench, guard, clients, memory, case)
                    if case.beside and innocents.watch(time.monotonic() + _WATCH) < COUNT:
                        raise SuiteError("an innocent died: what is measured is the server's recovery")
                    times.each.append(ms)
                    self.bench.say(f"{case.name} {len(times.each)} of {times.wanted}: {ms:.2f} ms")
                except (SuiteError, TimeoutError) as error:
                    times.errors.append(str(error))
                    self.bench.say(f"{case.name}: {error}")

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        for times in self.made:
            yield from times.rows()


def _one(bench: Bench, target: Target, clients: Clients, memory: GpuMemory, case: Case) -> float:
    """Seconds from the end of a culprit to its memory being free; 0 if it was so before."""
    before = memory.used()
    client = culprit.start(bench, target, clients, case.kind, in_flight=case.in_flight, memory=BYTES)
    client.wait_for("first_kernel", culprit.START)
    full = _when_taken(memory, before)
    ended = culprit.crash(client, case.kind).ended
    while memory.used() > full - BYTES:
        if time.monotonic() > ended + _FREE:
            raise SuiteError(f"{BYTES} bytes are still taken {_FREE:g} s after {case.name}")
        time.sleep(_PAUSE)
    return max(0.0, time.monotonic() - ended)


def _when_taken(memory: GpuMemory, before: int) -> int:
    """What is used while the culprit holds its memory; SuiteError if that cannot be seen."""
    limit = time.monotonic() + _SETTLED
    while (used := memory.used()) < before + BYTES:
        if time.monotonic() > limit:
            raise SuiteError(f"the culprit's memory cannot be seen: {before} bytes before, {used} with it")
        time.sleep(_PAUSE)
    return used


def measure(bench: Bench) -> Iterator[Finding]:
    """All cases, and the rows of what was made."""
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "memory", "milliseconds from the end of a client to its GPU memory being free", measure
)
