"""How soon a program that reaches into a zone is ended, where policy says so: its GPU work first, then the process."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.guard import Guard, Options
from tests.bench.core.statistics import percentile
from tests.bench.isolation import preloaded
from tests.bench.isolation.innocents import Innocents
from tests.bench.isolation.partial import kept
from tests.bench.isolation.tally import Tally, survival

REPETITIONS, QUICK_REPETITIONS = 20, 1
BAR_MS: Final = 25.0
BUSY: Final = 5.0
"""Seconds that the kernel would run on after its access."""
TERMINATED: Final = 810
"""CUDA_ERROR_MPS_CLIENT_TERMINATED (cuda.h)."""
WATCH: Final = 0.3
_START: Final = 30.0
_ERRORS: Final = 3
_NAME: Final = "overrun, policy ends the culprit"


@dataclass
class Study:
    """One guard that enforces, one culprit after the other, the same innocents."""

    bench: Bench
    tally: Tally = field(init=False)
    ended_ms: list[float] = field(default_factory=list)
    """From just before the launch to the error that the culprit was told."""

    def __post_init__(self) -> None:
        self.tally = Tally(_NAME, self.bench.runs(REPETITIONS, QUICK_REPETITIONS))

    def make(self) -> None:
        """All repetitions."""
        variables = preloaded.variables(self.bench)
        with self.bench.guard(options=Options(terminate=True)) as guard, Clients() as clients:
            innocents = Innocents(self.bench, guard, clients)
            while self.tally.made + len(self.tally.errors) < self.tally.wanted and len(self.tally.errors) < _ERRORS:
                try:
                    innocents.ready()
                    injected = self._one(clients, guard, variables)
                    self.tally.add(innocents.watch(injected + WATCH))
                    self.bench.say(f"{_NAME}, {self.tally.made} of {self.tally.wanted}: {self.ended_ms[-1]:.1f} ms")
                except (SuiteError, TimeoutError) as error:
                    self.tally.errors.append(str(error))
                    self.bench.say(f"{_NAME}: {error}")

    def _one(self, clients: Clients, guard: Guard, variables: Mapping[str, str]) -> float:
        command = preloaded.overrun(self.bench, ("--controlled", "--busy", f"{BUSY:g}"))
        client = clients.start(command, guard.pipe_directory, "overrun", variables)
        client.wait_for("allocated", _START)
        client.go()
        injected = client.wait_for("injected", _START).monotonic
        error = client.wait_for("error", 2 * BUSY)
        client.finish(_START)
        if error.number("code") != TERMINATED:
            raise SuiteError(f"it was not terminated, but told {error.number('code'):.0f}")
        self.ended_ms.append(1000 * (error.monotonic - injected))
        return injected

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        yield from survival(self.tally, None)
        if self.ended_ms:
            worst = percentile(self.ended_ms, 1.0)
            yield sampled(
                f"{_NAME}: access to the error it is told",
                self.ended_ms,
                unit="ms",
                bar=f"every one <= {BAR_MS:g} ms",
                holds=worst <= BAR_MS and len(self.ended_ms) == self.tally.wanted,
            )


def measure(bench: Bench) -> Iterator[Finding]:
    """The rows; what was measured is kept when it is stopped."""
    if bench.programs.simulated:
        bench.say("enforced: a simulated program has no zones")
        return
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement("enforced", "a program that reaches into a zone, ended by policy", measure)
