"""Rates of loops under the preload against the same without it, and without it against itself; or of other two ways.

How fast a process is depends on more than what it does: on where its memory came to lie, on its CPUs, on the clocks. So
each loop is run by several crews of fresh processes, all on the same CPU and one at a time; in a crew one process runs
under the preload and two do not. What the two plain ones differ by is what the measurement cannot tell apart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from tests.bench.core.bench import Bench, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.programs import Work
from tests.bench.isolation import preloaded

BAR: Final = 0.99
QUICK_CREWS: Final = 1
TURNS: Final = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
"""The order in a crew (0 is the one under the preload): each in each place, and none twice in a row."""
ROUNDS, QUICK_ROUNDS = 6, 2
"""Of a crew and a loop, in these turns."""
STEPS: Final = 4000
"""About 0.1 ms a kernel."""
_TOGETHER: Final = 10
"""Crews that are started at once; an MPS server has no more than 48 clients."""
_START: Final = 120.0
_ROUND: Final = 30.0
_STEADY: Final = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Loops:
    """A program that makes one loop or more, in turn, each time for a round."""

    names: tuple[str, ...]
    command: Callable[[Bench, Work], list[str]]
    crews: int
    seconds: float
    """Of a round. Short, and many of them: what disturbs a virtual CPU for longer then disturbs neighbours alike."""
    needs_torch: bool = True
    steps: int = STEPS


@dataclass(frozen=True)
class Arms:
    """The two ways to run a loop that are compared, as the rows call them."""

    ours: str = "under the preload"
    peer: str = "plain"


KERNELS: Final = Loops(
    ("kernel loop",), lambda bench, work: bench.programs.worker(work), crews=3, seconds=0.2, needs_torch=False
)
BUSY: Final = Loops(
    ("PyTorch training loop", "PyTorch inference loop"),
    lambda bench, work: preloaded.torch_loops(bench, ("train", "infer"), work),
    crews=3,
    seconds=0.2,
)
SHORT: Final = Loops(
    (
        "PyTorch training loop, steps shorter than Python takes to launch them",
        "PyTorch inference loop, steps shorter than Python takes to launch them",
    ),
    lambda bench, work: preloaded.torch_loops(bench, ("train-small", "infer-small"), work),
    crews=20,
    seconds=0.1,
)
"""Many crews: from one process to the next, such a loop's rate differs by three percent without any preload."""


@dataclass
class _Ratios:
    """Of one loop."""

    ours: list[float] = field(default_factory=list)
    """The preload's rate over plain."""
    itself: list[float] = field(default_factory=list)
    """Plain again over plain, from the same rounds."""


@dataclass
class Rates:
    """One program's loops."""

    loops: Loops
    bench: Bench
    arms: Arms = Arms()
    crews: int = 0
    """Measured to the end."""
    _ratios: list[_Ratios] = field(init=False)

    def __post_init__(self) -> None:
        self._ratios = [_Ratios() for _ in self.loops.names]

    def measure(self, target: Target, variables: Mapping[str, str], peer: Mapping[str, str] | None = None) -> None:
        """All crews; while one is measured, those that were started with it wait.

        ``variables`` are the environment of ours; ``peer`` is that of the two others, if they need one.
        """
        crews = self.bench.runs(self.loops.crews, QUICK_CREWS)
        while self.crews < crews:
            together = min(_TOGETHER, crews - self.crews)
            with Clients() as clients:
                started = [self._start(clients, target, variables, peer or {}) for _ in range(together)]
                for client in (client for crew in started for client in crew):
                    client.wait_for("first_kernel", _START)
                for crew in started:
                    self._measure(crew)
                # Only now: a process that is ending disturbs those at work.
                for client in (client for crew in started for client in crew):
                    client.stop()
                for client in (client for crew in started for client in crew):
                    if not (done := client.finish(_ROUND)).ok:
                        raise SuiteError(done.describe())

    def _start(
        self, clients: Clients, target: Target, variables: Mapping[str, str], peer: Mapping[str, str]
    ) -> list[Client]:
        rounds = (1 + self.bench.runs(ROUNDS, QUICK_ROUNDS)) * len(self.loops.names)
        # One more than are made: the last one waits for the end, too.
        work = Work(seconds=self.loops.seconds, work=self.loops.steps, controlled=True, rounds=rounds + 1)
        command = self.loops.command(self.bench, work)
        label = self.loops.names[0]
        names = (self.arms.ours, self.arms.peer, f"{self.arms.peer} again")
        extra = [_STEADY | dict(each) for each in (variables, peer, peer)]
        return [
            clients.start(command, target.pipe_directory, f"{label}, {arm}", each)
            for arm, each in zip(names, extra, strict=True)
        ]

    def _measure(self, crew: Sequence[Client]) -> None:
        for client in crew:
            for _ in self.loops.names:
                one_round(client)  # warm: clocks
        rounds = self.bench.runs(ROUNDS, QUICK_ROUNDS)
        for number in range(rounds):
            for ratios in self._ratios:
                rate = {index: one_round(crew[index]) for index in TURNS[number % len(TURNS)]}
                ratios.ours.append(rate[0] / rate[1])
                ratios.itself.append(rate[2] / rate[1])
        self.crews += 1
        for name, ratios in zip(self.loops.names, self._ratios, strict=True):
            own, peer = ratios.ours[-rounds:], ratios.itself[-rounds:]
            self.bench.say(f"{name}, crew {self.crews}: {median(own):.4f}, {self.arms.peer} {median(peer):.4f}")

    def rows(self) -> Iterator[Finding]:
        """A row for each loop, with plain over plain beside it."""
        wanted = self.bench.runs(self.loops.crews, QUICK_CREWS) * self.bench.runs(ROUNDS, QUICK_ROUNDS)
        for name, ratios in zip(self.loops.names, self._ratios, strict=True):
            if not ratios.ours:
                continue
            yield sampled(
                f"{name}, rate {self.arms.ours} over {self.arms.peer} (paired ratios)",
                ratios.ours,
                unit="",
                bar=f"median >= {BAR}",
                holds=median(ratios.ours) >= BAR and len(ratios.ours) == wanted,
                peer=ratios.itself,
                peer_name=f"{self.arms.peer} over {self.arms.peer}",
                note=f"{self.arms.ours}: {_shown(ratios.ours)}; {self.arms.peer}: {_shown(ratios.itself)}",
            )


def _shown(ratios: Sequence[float]) -> str:
    return " ".join(f"{value:.4f}" for value in ratios)


def one_round(client: Client) -> float:
    """Iterations per second in a round of its own."""
    before = len(client.all_seen("round"))
    after = client.all_seen("round")[-1].monotonic if before else 0.0
    client.go()
    done = client.wait_for("round", _ROUND, after=after)
    return done.number("iterations") / done.number("seconds")
