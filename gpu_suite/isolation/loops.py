"""Rates of loops under the preload against the same without it, and without it against itself.

How fast a process is depends on more than what it does: on where its memory came to lie, on its CPUs, on the clocks. So
each loop is run by several crews of fresh processes, all on the same CPU and one at a time; in a crew one process runs
under the preload and two do not. What the two plain ones differ by is what the measurement cannot tell apart.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from gpu_suite.core.bench import Bench, Target
from gpu_suite.core.client import Client, Clients
from gpu_suite.core.errors import SuiteError
from gpu_suite.core.finding import Finding, sampled
from gpu_suite.core.programs import Work
from gpu_suite.core.statistics import alternating
from gpu_suite.isolation import preloaded

BAR: Final = 0.99
CREWS, QUICK_CREWS = 3, 1
TRIPLES, QUICK_TRIPLES = 16, 2
"""Rounds of a crew: each time preload, plain and plain again, in turn forwards and backwards."""
SECONDS: Final = 0.2
"""Of a round. Short, and many of them: what disturbs a virtual CPU for longer then disturbs neighbours alike."""
STEPS: Final = 4000
"""About 0.1 ms a kernel."""
_START: Final = 120.0
_ROUND: Final = 30.0
_STEADY: Final = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Loop:
    """A program that is run with the preload and without."""

    name: str
    command: Callable[[Bench, Work], list[str]]
    needs_torch: bool = True


def _torch(name: str, kind: str) -> Loop:
    return Loop(name, lambda bench, work: preloaded.torch_loop(bench, kind, work))


LOOPS: Final = (
    Loop("kernel loop", lambda bench, work: bench.programs.worker(work), needs_torch=False),
    _torch("PyTorch training loop", "train"),
    _torch("PyTorch inference loop", "infer"),
    _torch("PyTorch training loop, steps shorter than Python takes to launch them", "train-small"),
    _torch("PyTorch inference loop, steps shorter than Python takes to launch them", "infer-small"),
)


@dataclass
class Rates:
    """One loop."""

    loop: Loop
    bench: Bench
    crews: int = 0
    ours: list[float] = field(default_factory=list)
    """The preload's rate over plain."""
    itself: list[float] = field(default_factory=list)
    """Plain again over plain, from the same rounds."""

    def measure(self, target: Target, variables: Mapping[str, str]) -> None:
        """All crews."""
        triples = self.bench.runs(TRIPLES, QUICK_TRIPLES)
        work = Work(seconds=SECONDS, work=STEPS, controlled=True, rounds=triples + 1)
        for _ in range(self.bench.runs(CREWS, QUICK_CREWS)):
            with Clients() as clients:
                arms = (("preload", {**_STEADY, **variables}), ("plain", _STEADY), ("plain again", _STEADY))
                command = self.loop.command(self.bench, work)
                crew = [
                    clients.start(command, target.pipe_directory, f"{self.loop.name}, {arm}", extra)
                    for arm, extra in arms
                ]
                for client in crew:
                    client.wait_for("first_kernel", _START)
                for client in crew:
                    one_round(client)  # warm: clocks
                for forwards, _ in alternating(triples):
                    order = (0, 1, 2) if forwards else (2, 1, 0)
                    rate = {index: one_round(crew[index]) for index in order}
                    self.ours.append(rate[0] / rate[1])
                    self.itself.append(rate[2] / rate[1])
                for client in crew:
                    if not (done := client.finish(_ROUND)).ok:
                        raise SuiteError(done.describe())
            self.crews += 1
            own, peer = self.ours[-triples:], self.itself[-triples:]
            self.bench.say(f"{self.loop.name}, crew {self.crews}: {median(own):.4f}, plain {median(peer):.4f}")

    def rows(self) -> Iterator[Finding]:
        """Its row, with plain over plain beside it."""
        if not self.ours:
            return
        wanted = self.bench.runs(CREWS, QUICK_CREWS) * self.bench.runs(TRIPLES, QUICK_TRIPLES)
        yield sampled(
            f"{self.loop.name}, rate under the preload over plain (paired ratios)",
            self.ours,
            unit="",
            bar=f"median >= {BAR}",
            holds=median(self.ours) >= BAR and len(self.ours) == wanted,
            peer=self.itself,
            peer_name="plain over plain",
            note="preload: " + _shown(self.ours) + "; plain: " + _shown(self.itself),
        )


def _shown(ratios: list[float]) -> str:
    return " ".join(f"{value:.4f}" for value in ratios)


def one_round(client: Client) -> float:
    """Iterations per second in a round of its own."""
    before = len(client.all_seen("round"))
    after = client.all_seen("round")[-1].monotonic if before else 0.0
    client.go()
    done = client.wait_for("round", _ROUND, after=after)
    return done.number("iterations") / done.number("seconds")
