"""What there is without a standby: the process dies of its neighbour's fault, and is started again at once.

The model is made anew on the GPU, of seeded random numbers, which takes about as long as to read weights from a disk
that is fast.
"""

import time
from collections.abc import Iterator
from typing import Final

from gpu_suite.core.bench import Bench, Measurement
from gpu_suite.core.client import Clients
from gpu_suite.core.errors import SuiteError
from gpu_suite.core.finding import Finding, sampled
from gpu_suite.core.guard import Guard, Options
from gpu_suite.failover.latency import KILL, SM
from gpu_suite.failover.program import START, Program, environment, server_arguments
from gpu_suite.failover.rounds import injected, start_culprit
from gpu_suite.isolation.partial import kept

MODELS: Final = {"gpt2": 5, "llama-7b": 2}
QUICK_ROUNDS: Final = 1
TOKENS: Final = 200
REQUESTS: Final = 100_000
"""More than are ever answered."""
_WORKING: Final = 0.5
_MS: Final = 1e6


class _Restarted:
    """A server without a standby that is started again when it ends."""

    def __init__(self, bench: Bench, guard: Guard, model: str) -> None:
        self._bench = bench
        self._guard = guard
        self._model = model
        self._number = 0
        self._directory = bench.root / f"cold-{model}"
        self._directory.mkdir()
        self.program = self.start()

    def start(self) -> Program:
        """A new process; the state of the work is in the vault."""
        self._number += 1
        name = f"{self._model}-{self._number}"
        device = "cpu" if self._bench.programs.simulated else "cuda"
        events = self._directory / f"{name}.events"
        argv = server_arguments(self._model, f"cold-{self._model}", events, "cold", device)
        argv += [
            "--requests",
            str(REQUESTS),
            "--prompt",
            "32",
            "--tokens",
            str(min(TOKENS, 60 if device == "cpu" else TOKENS)),
        ]
        self.program = Program(self._directory, name, argv, environment(self._guard))
        return self.program

    def fault(self, kind: str, operation: list[float], token: list[float]) -> None:
        """One fault, one restart."""
        self.program.wait_for("token")
        time.sleep(_WORKING)  # of ordinary work
        if kind == KILL:
            at = time.monotonic_ns()
            self.program.process.kill()
            self._again(at, operation, token)
            return
        with Clients() as clients:
            culprit = start_culprit(self._bench, self._guard, clients, kind, 0.1)
            self._again(injected(culprit), operation, token)

    def _again(self, at: int, operation: list[float], token: list[float]) -> None:
        old = self.program
        try:
            old.process.wait(START)
        except TimeoutError:
            raise SuiteError(f"{old.name} has not ended") from None
        new = self.start()
        operation.append((new.wait_for("first_operation")["ns"] - at) / _MS)
        token.append((new.wait_for("token")["ns"] - at) / _MS)


def measure(bench: Bench) -> Iterator[Finding]:
    """SM faults of a co-tenant, and for each the time until the restarted process has its next token."""
    models = {"tiny-gpt2": 2} if bench.programs.simulated else MODELS
    for model, rounds in models.items():
        operation: list[float] = []
        token: list[float] = []

        def make(
            model: str = model, rounds: int = rounds, operation: list[float] = operation, token: list[float] = token
        ) -> None:
            with bench.guard(options=Options(host_memory=bench.programs.simulated)) as guard:
                restarted = _Restarted(bench, guard, model)
                try:
                    for number in range(bench.runs(rounds, QUICK_ROUNDS)):
                        kind = KILL if bench.programs.simulated else SM[number % len(SM)]
                        restarted.fault(kind, operation, token)
                        bench.say(f"  {model} {number}: next token after {token[-1]:.0f} ms")
                finally:
                    restarted.program.close()

        def rows(
            model: str = model, operation: list[float] = operation, token: list[float] = token
        ) -> Iterator[Finding]:
            for what, values in (("first finished operation", operation), ("next token", token)):
                if values:
                    yield sampled(
                        f"{model}, cold restart, SM faults: fault to {what}",
                        values,
                        unit="ms",
                        bar="reported beside the vault",
                        holds=True,
                    )

        yield from kept(make, rows)


MEASUREMENT: Final = Measurement("cold", "the same without a standby: the process is started again", measure)
