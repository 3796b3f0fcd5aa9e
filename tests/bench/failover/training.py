"""A training loop with a standby: whether it resumes at the last published step, and computes what it would have.

The same loop runs beside it on a server of its own, without faults: whatever step the first one says to
have made, that one makes too. It stands still while a takeover is timed, or the GPU would be shared with it; but its
channels are there, and the driver looks at them, too (`first_word`): some milliseconds of what is reported are theirs.
"""

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.finding import Finding, all_of, none_of, sampled
from tests.bench.core.guard import Guard, Options
from tests.bench.failover.latency import ENOUGH, KILL, SM
from tests.bench.failover.program import Program, WithStandby, environment
from tests.bench.failover.rounds import MOMENTS, TAKEN_OVER, commit
from tests.bench.isolation.partial import kept

QUICK_ROUNDS: Final = 2
STEPS: Final = 100_000_000
"""More than are ever made."""
_SECONDS: Final = 360.0
"""For all takeovers: those that are not begun then are not made."""
_MS: Final = 1e6

Event = Mapping[str, Any]


def losses(events: Sequence[Event]) -> dict[int, set[float]]:
    """Return the losses reported for each step: one value, if all is well. A process that resumes reports it again."""
    found: dict[int, set[float]] = {}
    for event in events:
        if event["event"] == "step" or (event["event"] == "promoted" and event["step"]):
            found.setdefault(event["step"], set()).add(event["loss"])
    return found


def wrong(made: Mapping[int, set[float]], undisturbed: Mapping[int, set[float]]) -> list[str]:
    """What is not as in the undisturbed run: steps that are missing, and those that have another loss."""
    found = []
    for step in range(1, max(made, default=0) + 1):
        if step not in made:
            found.append(f"step {step} is missing")
        elif made[step] != undisturbed.get(step):
            found.append(f"step {step}: {made[step]}, undisturbed {undisturbed.get(step)}")
    return found


def resumptions(events: Sequence[Event]) -> list[tuple[int, int]]:
    """For each standby that was promoted: the last step that its predecessor tells of, and where it resumed itself.

    A step is told of after it was published, so that there may be one more than was told.
    """
    last: dict[int, int] = {}
    promoted: list[Event] = []
    for event in events:
        if event["event"] == "promoted":
            promoted.append(event)
        if event["event"] in ("promoted", "step"):
            last[event["pid"]] = event["step"]
    return [(last[before["pid"]], after["step"]) for before, after in itertools.pairwise(promoted)]


@dataclass
class _Run:
    bench: Bench
    rounds: int
    simulated: bool
    resumed: list[float] = field(default_factory=list)
    """Milliseconds from the fault to the standby's first publication."""
    step: list[float] = field(default_factory=list)
    """To its first step that was made and published."""
    events: Sequence[Event] = ()
    undisturbed: Sequence[Event] = ()
    resumed_at: Sequence[tuple[int, int]] = ()
    """`resumptions`, before the program was told to stop: the GPU work of all its processes is ended first then, and
    a standby that sees the active one's end before its own may be promoted for a moment."""
    short: str = ""
    """Why there were fewer takeovers than wanted, if so."""

    def make(self) -> None:
        directory = self.bench.root / "training"
        directory.mkdir()
        chance = random.Random(5)
        with ExitStack() as stack:
            guard = stack.enter_context(self.bench.guard(options=Options(standby=True, host_memory=self.simulated)))
            stock = stack.enter_context(self.bench.stock())
            training = WithStandby(guard, directory, "training", self._command(directory, "training"), at_work="step")
            stack.callback(training.program.close)
            variables = environment(guard) | {"CUDA_MPS_PIPE_DIRECTORY": str(stock.pipe_directory)}
            alone = Program(directory, "undisturbed", self._command(directory, "undisturbed"), variables)
            stack.callback(alone.close)
            self.events, self.undisturbed = training.events.all, alone.events.all
            training.wait_until_guarded()
            due = time.monotonic() + _SECONDS
            for number in range(self.rounds):
                if time.monotonic() > due:
                    self.short = f"{number} takeovers in {_SECONDS:g} s"
                    break
                with _still(alone):
                    at = self._takeover(guard, training, SM[number % len(SM)], chance.uniform(*MOMENTS))
                self.bench.say(f"  {number}: resumed {self.resumed[-1]:.1f}, step {self.step[-1]:.1f} ms")
                training.wait_until_guarded(at)
                self.resumed_at = resumptions(training.events.look())
            training.program.close()
            alone.wait_for("step", step=max(losses(training.events.look())))

    def _takeover(self, guard: Guard, training: WithStandby, fault: str, after: float) -> int:
        """One fault, and the standby at work; when it was, ns."""
        with Clients() as clients:
            if self.simulated:
                time.sleep(after)  # a random moment, not a wait
                at = time.monotonic_ns()
                os.kill(training.active(), signal.SIGKILL)
            else:
                at = commit(self.bench, guard, clients, fault, after)
            promoted = training.program.wait_for("promoted", at, TAKEN_OVER)
            step = training.program.wait_for("step", promoted["ns"], TAKEN_OVER, pid=promoted["pid"])
        self.resumed.append((promoted["ns"] - at) / _MS)
        self.step.append((step["ns"] - at) / _MS)
        return at

    def _command(self, directory: Path, name: str) -> list[str]:
        words = ["--session", name, "--steps", str(STEPS), "--events", str(directory / f"{name}.events")]
        device = "cpu" if self.simulated else "cuda"
        return [sys.executable, "-m", "examples.training", "--device", device, *words]

    def rows(self) -> Iterator[Finding]:
        if not self.step:
            yield all_of("training loop: takeovers", 0, self.rounds, "takeovers")
            return
        made = losses(self.events)
        bad = wrong(made, losses(self.undisturbed))
        yield none_of(
            f"training loop: steps missing or with another loss than undisturbed, over {len(self.step)} takeovers",
            len(bad),
            max(made),
            "steps",
            note="; ".join(bad[:5]),
        )
        found = self.resumed_at
        elsewhere = [f"{told} told, resumed at {where}" for told, where in found if where not in (told, told + 1)]
        yield all_of(
            "training loop: resumed at the last published step",
            len(found) - len(elsewhere),
            self.rounds,
            "takeovers",
            note="; ".join([*elsewhere[:5], self.short]),
        )
        yield sampled(
            f"training loop, {KILL if self.simulated else 'SM faults'}: fault to first finished step",
            self.step,
            unit="ms",
            bar="reported",
            holds=True,
            note=f"resumed after {median(self.resumed):.1f} ms (p50)",
        )


@contextmanager
def _still(program: Program) -> Iterator[None]:
    program.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        program.process.send_signal(signal.SIGCONT)


def measure(bench: Bench) -> Iterator[Finding]:
    """SM faults of a co-tenant at random moments of a loop's steps."""
    simulated = bench.programs.simulated
    run = _Run(bench, bench.runs(QUICK_ROUNDS if simulated else ENOUGH, QUICK_ROUNDS), simulated)
    yield from kept(run.make, run.rows)


MEASUREMENT: Final = Measurement("training", "a training loop resumes at its last published step", measure)
