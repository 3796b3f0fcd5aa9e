"""The same program plainly and under the preload: whether it computes the same, bit by bit."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.bench import Bench, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import Outcome
from tests.bench.core.finding import Finding
from tests.bench.isolation import preloaded
from tests.bench.isolation.preloaded import Served
from tests.bench.results.schema import Row

PLAIN_RUNS, QUICK_PLAIN_RUNS = 2, 1
"""Two, so that a program with results that vary anyway is found out."""
RUNS, QUICK_RUNS = 3, 1
DEADLINE: Final = 150.0


@dataclass(frozen=True)
class Program:
    """One of `torch_programs.py`, or of a script that takes the same options."""

    name: str
    arguments: tuple[str, ...]
    ranks: tuple[Mapping[str, str], ...] = ({},)
    """Further variables of each of its processes."""
    own_devices: bool = False
    """Whether each process uses the device of its rank, and so sees others that are not its own."""
    together: bool = True
    """Whether its runs may share the machine: what is compared are results, not times."""
    note: str = ""
    script: str = "torch_programs.py"


@dataclass(frozen=True)
class Run:
    """What became of one run, all its processes together."""

    digests: tuple[str, ...] = ()
    """One a process; empty if one failed."""
    failure: str = ""


@dataclass
class Compared:
    """One program, in both arms."""

    program: Program
    wanted: int
    plain: Sequence[Run] = ()
    ours: Sequence[Run] = ()
    served: list[Served] = field(default_factory=list)

    @property
    def same(self) -> int:
        """Runs under the preload that computed what the plain ones did; 0 if those do not agree themselves."""
        wanted = agreed(self.plain)
        return 0 if wanted is None else sum(run.digests == wanted for run in self.ours)

    @property
    def at_work(self) -> int:
        """The number of processes with allocations served by the preload."""
        return sum(each.placed > 0 for each in self.served)

    def finding(self) -> Finding:
        """Whether all runs agree, and what the preload did in them."""
        row = Row(
            name=f"{self.program.name} under the preload: runs whose results are those of a plain one, bit by bit",
            value=self.same,
            count=self.wanted,
            unit="runs",
            bar=f"{self.wanted} of {self.wanted}",
            holds=self.same == self.wanted,
            runs=max(1, len(self.ours)),
        )
        return Finding(row, "; ".join(filter(None, [*self._notes(), self.program.note])))

    def _notes(self) -> Iterator[str]:
        if len({run.digests for run in self.plain}) > 1:
            yield "plain runs differ from each other"
        for arm, runs in (("plain", self.plain), ("preload", self.ours)):
            yield from (f"{arm}: {run.failure[:300]}" for run in runs if run.failure)
        if self.served:
            yield "allocations served, and left to the driver: " + ", ".join(each.describe() for each in self.served)


def agreed(runs: Sequence[Run]) -> tuple[str, ...] | None:
    """What all of some runs computed; None if they do not agree, one failed, or there is none."""
    found = {run.digests for run in runs}
    return next(iter(found)) or None if len(found) == 1 else None


def compare(bench: Bench, target: Target, program: Program) -> Compared:
    """Run it in both arms."""
    report = bench.root / f"preload-{uuid.uuid4().hex}.txt"
    variables = preloaded.variables(bench, report)
    plain, wanted = bench.runs(PLAIN_RUNS, QUICK_PLAIN_RUNS), bench.runs(RUNS, QUICK_RUNS)
    arms: list[Mapping[str, str]] = [{}] * plain + [variables] * wanted
    runs: list[Run] = []
    for batch in [arms] if program.together else [[arm] for arm in arms]:
        with Clients() as clients:
            started = [_start(bench, clients, target, program, each) for each in batch]
            runs += [_finish(each) for each in started]
    compared = Compared(program, wanted, runs[:plain], runs[plain:])
    if any(run.digests for run in compared.ours):
        compared.served = preloaded.served(report)
    bench.say(f"{program.name}: {compared.same} of {wanted} runs as plain; {'; '.join(compared._notes())}")
    return compared


def plainly(bench: Bench, target: Target, program: Program) -> Run:
    """One run of it without the preload."""
    with Clients() as clients:
        return _finish(_start(bench, clients, target, program, {}))


def _start(
    bench: Bench, clients: Clients, target: Target, program: Program, variables: Mapping[str, str]
) -> list[Client]:
    return [
        clients.start(words, target.pipe_directory, f"{program.name}, rank {rank}", {**own, **variables})
        for rank, (words, own) in enumerate(commands(bench, program))
    ]


def commands(bench: Bench, program: Program) -> list[tuple[list[str], Mapping[str, str]]]:
    """The command line of each of its processes for one run, and further variables."""
    meeting = bench.root / f"meeting-{uuid.uuid4().hex}"
    world = ("--world", str(len(program.ranks)), "--meeting", str(meeting))
    return [
        (
            preloaded.python_program(
                program.script,
                *program.arguments,
                *world,
                *("--rank", str(rank), "--device", str(rank if program.own_devices else 0)),
            ),
            own,
        )
        for rank, own in enumerate(program.ranks)
    ]


def _finish(processes: Sequence[Client]) -> Run:
    outcomes: list[Outcome] = []
    for process in processes:
        try:
            outcomes.append(process.finish(DEADLINE))
        except SuiteError as error:
            return Run(failure=str(error))
    return judged(outcomes)


def judged(outcomes: Sequence[Outcome]) -> Run:
    """A run that counts finished in all its processes, and found nothing wrong itself."""
    digests = []
    for outcome in outcomes:
        result = outcome.find("result")
        if not outcome.ok or result is None:
            return Run(failure=outcome.describe())
        if result.members.get("right") is False:
            return Run(failure=f"{outcome.label}: its sums are wrong")
        digests.append(str(result.members["digest"]))
    return Run(tuple(digests))


def at_work(compared: Sequence[Compared], name: str) -> Finding:
    """Whether the preload was at work in every process with a device to itself: what does nothing changes nothing."""
    counted = [each for each in compared if not each.program.own_devices]
    processes = sum(len(each.ours) * len(each.program.ranks) for each in counted)
    served = sum(each.at_work for each in counted)
    row = Row(
        name=name,
        value=served,
        count=processes or None,
        unit="processes",
        bar=f"{processes} of {processes}",
        holds=0 < processes == served,
        runs=1,
    )
    return Finding(row)
