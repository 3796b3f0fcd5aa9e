"""What there is without a standby: processes die of their neighbour's fault, and are started again at once.

The model is made anew on the GPU, of seeded random numbers, which takes about as long as to read weights from a disk
that is fast.
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.guard import Guard, Options
from tests.bench.failover.latency import KILL, SM
from tests.bench.failover.program import START, Program, environment, server_arguments
from tests.bench.failover.rounds import commit
from tests.bench.isolation.partial import kept

MODELS: Final = {"gpt2": (4, 5), "llama-7b": (5, 4)}
"""Servers, and faults that end all of them."""
QUICK_ROUNDS: Final = 1
TOKENS: Final = 200
REQUESTS: Final = 100_000
"""More than are ever answered."""
_WORKING: Final = 0.5
_MS: Final = 1e6


class _Server:
    """A server without a standby, started again by the observer of its end; its forward state is in the vault."""

    def __init__(self, guard: Guard, directory: Path, name: str, model: str, device: str) -> None:
        self._guard = guard
        self._directory = directory
        self._name = name
        self._model = model
        self._device = device
        self._starts = 0
        self.program = self._start()

    def end(self) -> None:
        """SIGKILL."""
        self.program.process.kill()

    def start_again(self) -> None:
        """Start it once the process has ended. SuiteError if that does not."""
        try:
            self.program.process.wait(START)
        except subprocess.TimeoutExpired:
            raise SuiteError(f"{self.program.name} has not ended") from None
        self.program = self._start()

    def close(self) -> None:
        """End it for good."""
        self.program.close()

    def _start(self) -> Program:
        self._starts += 1
        name = f"{self._name}-{self._starts}"
        events = self._directory / f"{name}.events"
        argv = server_arguments(self._model, self._name, events, "cold", self._device)
        tokens = min(TOKENS, 60 if self._device == "cpu" else TOKENS)
        argv += ["--requests", str(REQUESTS), "--prompt", "32", "--tokens", str(tokens)]
        return Program(self._directory, name, argv, environment(self._guard))


@dataclass
class _Run:
    """One model's servers, under one fault after the other."""

    bench: Bench
    model: str
    servers: int
    rounds: int
    operation: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)

    def make(self) -> None:
        simulated = self.bench.programs.simulated
        directory = self.bench.root / f"cold-{self.model}"
        directory.mkdir()
        with ExitStack() as stack:
            guard = stack.enter_context(self.bench.guard(options=Options(host_memory=simulated)))
            crew = []
            for number in range(self.servers):
                name = f"cold-{self.model}-{number}"
                server = _Server(guard, directory, name, self.model, "cpu" if simulated else "cuda")
                stack.callback(server.close)
                crew.append(server)
            for number in range(self.bench.runs(self.rounds, QUICK_ROUNDS)):
                self._round(guard, crew, KILL if simulated else SM[number % len(SM)])
                self.bench.say(f"  {self.model} {number}: next token after {self.token[-1]:.0f} ms")

    def _round(self, guard: Guard, crew: Sequence[_Server], kind: str) -> None:
        for server in crew:
            server.program.wait_for("token")
        time.sleep(_WORKING)  # of ordinary work
        if kind == KILL:
            at = time.monotonic_ns()
            for server in crew:
                server.end()
            self._again(crew, at)
            return
        with Clients() as clients:
            self._again(crew, commit(self.bench, guard, clients, kind, 0.1))

    def _again(self, crew: Sequence[_Server], at: int) -> None:
        for server in crew:
            server.start_again()
        for server in crew:
            self.operation.append((server.program.wait_for("first_operation")["ns"] - at) / _MS)
            self.token.append((server.program.wait_for("token")["ns"] - at) / _MS)

    def rows(self) -> Iterator[Finding]:
        for what, values in (("first finished operation", self.operation), ("next token", self.token)):
            if values:
                yield sampled(
                    f"{self.model}, cold restart, SM faults: fault to {what}",
                    values,
                    unit="ms",
                    bar="reported beside the vault",
                    holds=True,
                )


def measure(model: str, bench: Bench) -> Iterator[Finding]:
    """SM faults of a co-tenant, and for each the time until the restarted processes have their next token."""
    run = _Run(bench, "tiny-gpt2", 2, 2) if bench.programs.simulated else _Run(bench, model, *MODELS[model])
    yield from kept(run.make, run.rows)


def _measurement(name: str, what: str, model: str) -> Measurement:
    made: Callable[[Bench], Iterator[Finding]] = partial(measure, model)
    return Measurement(name, what, made)


MEASUREMENTS: Final = (
    _measurement("gpt2_cold", "GPT-2 small without a standby: the process is started again", "gpt2"),
    _measurement("llama_cold", "7B without a standby", "llama-7b"),
)
