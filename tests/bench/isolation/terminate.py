"""`mpsguard-ctl terminate` of a client with a kernel on the GPU: the innocents do not notice."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, none_of, sampled
from tests.bench.core.guard import Guard
from tests.bench.core.programs import Work
from tests.bench.isolation import culprit
from tests.bench.isolation.innocents import Innocents
from tests.bench.isolation.partial import kept
from tests.bench.isolation.tally import Tally, survival

REPETITIONS, QUICK_REPETITIONS = 20, 2
IN_FLIGHT: Final = 5.0
"""Seconds of the kernel: an answer before it ends is not its end."""
WATCH: Final = 0.4
TERMINATED: Final = 810
"""CUDA_ERROR_MPS_CLIENT_TERMINATED (cuda.h): what the synchronisation of a terminated client returns."""
_RUNNING: Final = 10.0
_ERRORS: Final = 3
_NAME: Final = f"terminate, kernel of {IN_FLIGHT:g} s in flight"


@dataclass
class Study:
    """Repetitions beside one crew."""

    bench: Bench
    tally: Tally = field(init=False)
    answered_ms: list[float] = field(default_factory=list)
    told_ms: list[float] = field(default_factory=list)
    late: int = 0

    def __post_init__(self) -> None:
        self.tally = Tally(_NAME, self.bench.runs(REPETITIONS, QUICK_REPETITIONS))

    def make(self) -> None:
        """All of them."""
        tally = self.tally
        with self.bench.guard() as guard, Clients() as clients:
            innocents = Innocents(self.bench, guard, clients)
            while tally.made + len(tally.errors) < tally.wanted and len(tally.errors) < _ERRORS:
                innocents.ready()
                try:
                    self._one(guard, clients)
                    tally.add(innocents.watch(time.monotonic() + WATCH))
                    self.bench.say(f"{tally.name} {tally.made} of {tally.wanted}: {self.answered_ms[-1]:.1f} ms")
                except (SuiteError, TimeoutError) as error:
                    tally.errors.append(str(error))
                    self.bench.say(f"{tally.name}: {error}")
            innocents.settle()  # they work, and do not only live
            innocents.count_late()
            self.late = innocents.late

    def _one(self, guard: Guard, clients: Clients) -> None:
        work = Work(seconds=60.0, controlled=True, fault="endless", in_flight=IN_FLIGHT)
        client = clients.start(self.bench.programs.worker(work), guard.pipe_directory, "guard-terminated")
        try:
            client.wait_for("first_kernel", culprit.START)
            client.go()
            running = client.wait_for("running", _RUNNING)
            asked = time.monotonic()
            answer = guard.terminate(client.pid)
            answered = time.monotonic()
            if not answer.terminated:
                raise SuiteError(f"terminate answered {answer.answer!r}")
            told = _told(client, running.monotonic + IN_FLIGHT)
        finally:
            client.end(grace=1.0)
        self.answered_ms.append(1000 * (answered - asked))
        self.told_ms.append(1000 * (told - asked))

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        yield from survival(self.tally, None)
        yield none_of(
            f"{self.tally.name}: innocents that died between two repetitions", self.late, self.tally.total, "innocents"
        )
        for what, samples in (("mpsguard-ctl answered", self.answered_ms), ("the client was told", self.told_ms)):
            if samples:
                yield sampled(
                    f"{self.tally.name}: until {what}",
                    samples,
                    unit="ms",
                    bar="reported",
                    holds=len(samples) == self.tally.wanted,
                    note="from the start of mpsguard-ctl, its interpreter's start included",
                )


def _told(client: Client, end: float) -> float:
    """When it was told that it was terminated; SuiteError if its kernel came to its own end instead."""
    error = client.wait_for("error", IN_FLIGHT + 5.0)
    if error.number("code") != TERMINATED or error.monotonic >= end:
        raise SuiteError(f"the kernel was not ended by terminate: error {error.number('code'):g}")
    return error.monotonic


def measure(bench: Bench) -> Iterator[Finding]:
    """All repetitions, and the rows of what was made."""
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "terminate", "mpsguard-ctl terminate of a client at work beside three innocents", measure
)
