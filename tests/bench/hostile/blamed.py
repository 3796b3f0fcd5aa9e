"""Faults that look like those of the only client of a lane: of a program outside MPS, and of a client that has gone.

Nothing of either may be said of the client, which is idle all the while.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DIED
from tests.bench.core.finding import Finding, none_of
from tests.bench.core.guard import Guard
from tests.bench.core.programs import Work, compile_cuda
from tests.bench.isolation.crashes import OPTIONS
from tests.bench.isolation.partial import kept, not_made, skipped
from tests.bench.results.schema import Row

REPETITIONS, QUICK_REPETITIONS = 10, 1
_IDLE: Final = Work(seconds=600.0, controlled=True)
"""It waits to be released, and never is."""
_START: Final = 30.0
_LENGTH: Final = 0.5
"""Seconds that the kernel runs before it traps: the client that launched it is killed meanwhile."""
_TOLD: Final = 3.0
"""Seconds after the trap in which all that is said of it has been said: the driver's lines come within 0.1 s."""
_ERRORS: Final = 3


@dataclass
class Case:
    """One way, and what came of it."""

    name: str
    wanted: int
    made: int = 0
    accused: int = 0
    """Idle clients that an incident names as culprit."""
    died: int = 0
    """Idle clients that ended by the fault."""
    named: int = 0
    """Incidents that name the culprit."""
    errors: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        yield not_made(self.name, self.errors, self.made, self.wanted)
        yield none_of(f"{self.name}: idle clients named", self.accused, self.made, "clients")
        for what, count in (("culprits named", self.named), ("idle clients that ended", self.died)):
            yield Finding(
                Row(
                    name=f"{self.name}: {what}",
                    value=count,
                    count=self.made,
                    unit="repetitions",
                    bar="reported",
                    holds=True,
                    runs=max(self.made, 1),
                )
            )


def outside(bench: Bench, guard: Guard, clients: Clients, binary: Path) -> Client:
    """A program without MPS traps; the program."""
    bare = bench.root / "no-mps"
    bare.mkdir(exist_ok=True)
    culprit = clients.start([str(binary), "0.05"], bare, "outside")
    culprit.wait_for("first_kernel", _START)
    culprit.go()
    culprit.wait_for(DIED, _START)
    if culprit.pid in {client.process.pid for client in guard.clients()}:
        raise SuiteError("the program outside MPS is a client")
    return culprit


def left_behind(_: Bench, guard: Guard, clients: Clients, binary: Path) -> Client:
    """A client is killed with a kernel in flight that traps afterwards; the client."""
    culprit = clients.start([str(binary), str(_LENGTH)], guard.pipe_directory, "left-behind")
    culprit.wait_for("first_kernel", _START)
    culprit.go()
    culprit.wait_for("injected", _START)
    culprit.end(grace=0.0)
    time.sleep(_LENGTH)  # the kernel's own length: nothing tells of its trap but what is being measured
    return culprit


def repeat(
    bench: Bench, case: Case, commit: Callable[[Bench, Guard, Clients, Path], Client], binary: Path
) -> Iterator[Finding]:
    """All repetitions of one way, each with a guard and a lane of its own."""

    def make() -> None:
        while case.made < case.wanted and len(case.errors) < _ERRORS:
            try:
                once(bench, case, commit, binary)
            except (SuiteError, TimeoutError) as error:
                case.errors.append(str(error))
                bench.say(f"{case.name}: {error}")

    yield from kept(make, case.rows)


def once(bench: Bench, case: Case, commit: Callable[[Bench, Guard, Clients, Path], Client], binary: Path) -> None:
    """One repetition."""
    with bench.guard(options=OPTIONS) as guard, Clients() as clients:
        idle = clients.start(bench.programs.worker(_IDLE), guard.pipe_directory, "idle")
        idle.wait_for("first_kernel", _START)
        culprit = commit(bench, guard, clients, binary)
        time.sleep(_TOLD)
        culprits = {incident["culprit"] for incident in guard.incidents()}
        case.made += 1
        case.accused += idle.pid in culprits
        case.named += culprit.pid in culprits
        case.died += idle.ended_with() is not None or idle.seen(DIED) is not None
        bench.say(f"{case.name} {case.made} of {case.wanted}: named {sorted(filter(None, culprits))}, idle {idle.pid}")


def measure(name: str, commit: Callable[[Bench, Guard, Clients, Path], Client], bench: Bench) -> Iterator[Finding]:
    """One way, its repetitions and rows."""
    if bench.programs.simulated:
        yield skipped(name, "work that goes on without its process cannot be simulated")
        return
    binary = bench.root / "late_trap"
    binary = binary if binary.exists() else compile_cuda("late_trap", bench.root)
    case = Case(name, bench.runs(REPETITIONS, QUICK_REPETITIONS))
    yield from repeat(bench, case, commit, binary)


OUTSIDE: Final = Measurement(
    "outside", "an SM fault of a program outside MPS beside one idle client", partial(measure, "outside", outside)
)
GHOST: Final = Measurement(
    "ghost", "a client killed with a kernel in flight that traps later", partial(measure, "ghost", left_behind)
)
