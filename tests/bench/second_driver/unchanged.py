"""Programs that know nothing of mpsguard, with a second driver and without a fault: what they compute, and would live.

PyTorch, CUDA graphs, cuBLAS and NCCL, CuPy, and NVIDIA's samples: each runs plainly and with a second driver, cold and
hot, with spare memory for epochs, as clients of one guard with two lanes. Meanwhile each says whether it would live
through a fault of a neighbour, and if not, why.
"""

import importlib.util
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.bench.core import batch
from tests.bench.core.batch import Command, End, Task
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import client_environment
from tests.bench.core.events import Outcome, parse_event
from tests.bench.core.finding import Finding, all_of, none_of
from tests.bench.core.guard import Guard, Options
from tests.bench.isolation import preloaded, sameness
from tests.bench.isolation import programs as small
from tests.bench.isolation.partial import kept, skipped
from tests.bench.isolation.sameness import Program, Run
from tests.bench.results.schema import Row
from tests.bench.second_driver import samples, second
from tests.bench.second_driver.second import Mode
from tests.bench.second_driver.words import YES, Survival, Words

TORCH, CUPY, SAMPLES = "small programs (PyTorch, cuBLAS, NCCL)", "CuPy", "NVIDIA's samples"
CUPY_PROGRAMS: Final = tuple(
    Program(f"CuPy: {name}", (name,), script="cupy_programs.py")
    for name in ("arrays", "kernels", "libraries", "sparse", "streams", "ordered", "managed")
)
_PLAIN_RUNS: Final = 2
"""So that a program with results that vary anyway is found out; with --quick one of a program in Python."""
_PYTHON_AT_ONCE, _SAMPLES_AT_ONCE = 8, 12
"""MPS has room for 48 clients of a user, and a sample may be of two processes."""


Processes = Sequence[tuple[Sequence[str], Mapping[str, str]]]
"""The command line of each process of a program, and further variables."""


@dataclass(frozen=True)
class Subject:
    """One program to compare."""

    family: str
    name: str
    commands: Callable[[], Processes]
    """For one run."""
    within: float
    together: bool = True
    """Whether several runs of it may be under way at once."""
    directory: Path | None = None
    """Where it works; None: where the suite does."""
    reports: bool = True
    """Whether it prints events with a digest; of others the text is compared."""


@dataclass
class Found:
    """What became of one program; ``modes`` has a run with a second driver for each mode."""

    family: str
    name: str
    plain: list[Run] = field(default_factory=list)
    modes: dict[Mode, Run] = field(default_factory=dict)
    survival: dict[Mode, Survival] = field(default_factory=dict)

    @property
    def incomparable(self) -> str:
        """Why there is nothing to compare with; empty if there is."""
        if failure := next((run.failure for run in self.plain if run.failure), ""):
            return failure
        if not self.plain:
            return "not reached"
        if sameness.agreed(self.plain) is None:
            return f"plain runs differ: {_apart(self.plain[0], self.plain[-1])}"
        return ""

    def describe(self) -> str:
        """In a few words."""
        if why := self.incomparable:
            return f"{self.name}: not compared: {why[:200]}"
        return f"{self.name}: " + "; ".join(
            f"{mode} {self.difference(mode)[:200] or 'as plain'}, {self._said(mode)}" for mode in self.modes
        )

    def _said(self, mode: Mode) -> str:
        said = self.survival[mode]
        return f"mostly {said.longest or 'no word'}, at the end {said.last or 'no word'}"

    def difference(self, mode: Mode) -> str:
        """What is not as in the plain runs; empty if nothing."""
        run = self.modes.get(mode, Run(failure="not reached"))
        if run.failure:
            return run.failure
        return "" if run.digests == sameness.agreed(self.plain) else _apart(self.plain[0], run)


def _apart(one: Run, other: Run) -> str:
    return samples.difference("\n".join(one.digests), "\n".join(other.digests))


def _alone(binary: Path) -> Processes:
    return [((str(binary),), {})]


def judged(subject: Subject, ends: Sequence[End]) -> Run:
    """Return what a run computed, of the ends of all its processes."""
    if late := next((end for end in ends if end.late), None):
        return Run(failure=f"killed after {subject.within:g} s; {late.text[-200:]!r}")
    if not subject.reports:
        if failed := next((end for end in ends if end.status != 0), None):
            return Run(failure=f"status {failed.status}; {' | '.join(failed.text.split(chr(10))[-4:])[-200:]}")
        return Run(tuple(samples.comparable(end.text) for end in ends))
    outcomes = []
    for end in ends:
        lines = end.text.splitlines()
        events = [event for event in map(parse_event, lines) if event is not None]
        noise = [line for line in lines if parse_event(line) is None]
        outcomes.append(Outcome(subject.name, end.pid, end.status, events, noise[-5:]))
    return sameness.judged(outcomes)


@dataclass
class _Pass:
    """One run of a program, and what its processes say meanwhile; ``mode`` None is plainly."""

    subject: Subject
    found: Found
    mode: Mode | None
    words: dict[int, Words] = field(default_factory=dict)

    def look(self, pid: int) -> None:
        if self.mode is not None:
            self.words.setdefault(pid, Words(pid)).look()

    def end(self, ends: Sequence[End]) -> None:
        self.close()
        run = judged(self.subject, ends)
        if self.mode is None:
            self.found.plain.append(run)
        else:
            self.found.modes[self.mode] = run
            self.found.survival[self.mode] = Survival.of(list(self.words.values()))

    def close(self) -> None:
        for each in self.words.values():
            each.close()


@dataclass
class Study:
    """All of it; `rows` shows what there is at any time."""

    bench: Bench
    preload: Mapping[str, str] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)
    compiled: int = 0
    not_compiled: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    incidents: int = 0
    """That the guard saw meanwhile: nothing here commits a fault."""

    def make(self) -> None:
        """Build, then the Python programs, then the samples."""
        self.preload = preloaded.variables(self.bench)
        built = self._samples()
        with self.bench.guard(options=Options(standby=True)) as guard:
            self.bench.warm_up(guard)
            self.compare(guard, self._python(), _PYTHON_AT_ONCE)
            self.compare(guard, built, _SAMPLES_AT_ONCE)
            self.incidents = len(guard.began())

    def _python(self) -> list[Subject]:
        chosen: list[tuple[str, Program]] = []
        if missing := preloaded.no_torch(self.bench):
            self.skipped[TORCH] = missing
        else:
            # With --quick without the one that takes as long as all others together, one run at a time.
            chosen += [(TORCH, each) for each in small.TORCH if each.together or not self.bench.quick]
        if importlib.util.find_spec("cupy") is None:
            self.skipped[CUPY] = f"{sys.executable} has no cupy"
        else:
            chosen += [(CUPY, each) for each in CUPY_PROGRAMS]
        return [
            Subject(family, each.name, partial(self._commands, each), sameness.DEADLINE, each.together)
            for family, each in chosen
        ]

    def _commands(self, program: Program) -> Processes:
        cache = {"CUPY_CACHE_DIR": str(self.bench.root / "cupy")}
        return [(words, {**own, **cache}) for words, own in sameness.commands(self.bench, program)]

    def _samples(self) -> list[Subject]:
        """Compile them."""
        directory, missing = samples.directory()
        if directory is None:
            self.skipped[SAMPLES] = missing
            return []
        begin, into = time.monotonic(), self.bench.root / "samples"
        into.mkdir()
        chosen = {each.name: each for each in samples.SAMPLES if each.quick or not self.bench.quick}
        made = {name: samples.compilation(each, directory, into) for name, each in chosen.items()}
        tasks = [task for task in made.values() if isinstance(task, Task)]
        self.not_compiled = {name: why for name, why in made.items() if isinstance(why, str)}
        for task, ends in zip(tasks, batch.run(tasks, os.cpu_count() or 1), strict=True):
            if why := samples.why_not_compiled(ends):
                self.not_compiled[task.label] = why
        good = [each for name, each in chosen.items() if name not in self.not_compiled]
        self.compiled = len(good)
        self.bench.say(f"{len(good)} of {len(chosen)} samples compiled in {time.monotonic() - begin:.0f} s")
        return [
            Subject(
                SAMPLES,
                each.name,
                partial(_alone, into / each.name / each.name),
                samples.RUN_WITHIN,
                each.together,
                into / each.name,
                reports=False,
            )
            for each in good
        ]

    def compare(self, guard: Guard, subjects: Sequence[Subject], most: int) -> None:
        """Run each plainly and in each mode, ``most`` runs at once; then those that must be alone."""
        for together in (True, False):
            chosen = [each for each in subjects if each.together is together]
            self._run(guard, chosen, most if together else 1)

    def _run(self, guard: Guard, subjects: Sequence[Subject], most: int) -> None:
        begin = time.monotonic()
        found = [Found(each.family, each.name) for each in subjects]
        self.found += found
        passes = [
            _Pass(subject, one, mode)
            for subject, one in zip(subjects, found, strict=True)
            for mode in [*[None] * (1 if self.bench.quick and subject.reports else _PLAIN_RUNS), *Mode]
        ]
        try:
            batch.run(
                [self._task(guard, each) for each in passes],
                most,
                lambda number, pid: passes[number].look(pid),
                lambda number, ends: passes[number].end(ends),
            )
        finally:
            for each in passes:
                each.close()
        for one in found:
            self.bench.say(one.describe())
        if self.bench.out is not None:
            text = "".join(f"{one.family}: {one.describe()}\n" for one in self.found)
            (self.bench.out / "second_driver-programs.txt").write_text(text)
        self.bench.say(f"{len(passes)} runs of {len(subjects)} programs took {time.monotonic() - begin:.0f} s")

    def _task(self, guard: Guard, one: _Pass) -> Task:
        variables = client_environment(guard.pipe_directory)
        if one.mode is not None:
            variables |= {**self.preload, **second.variables(one.mode, None, spare=second.SPARE)}
        commands = tuple(
            Command(tuple(words), {**variables, **own}, one.subject.directory) for words, own in one.subject.commands()
        )
        return Task(one.subject.name, commands, one.subject.within)

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        yield from rows(self.found)
        if self.compiled or self.not_compiled:
            yield not_compiled(self.not_compiled, self.compiled)
        for name, why in self.skipped.items():
            yield skipped(name, why)
        if self.found:
            yield none_of("incidents at the guard meanwhile", self.incidents, len(self.found), "incidents")


def rows(found: Sequence[Found]) -> Iterator[Finding]:
    """Of each family what is equal; of all programs together which would live, and what keeps the others from it."""
    for family in dict.fromkeys(each.family for each in found):
        mine = [each for each in found if each.family == family]
        comparable = [each for each in mine if not each.incomparable]
        for mode in Mode:
            other = {each.name: each.difference(mode) for each in comparable if each.difference(mode)}
            name = f"{family}, {mode} second driver with epochs: programs with the results of plain runs"
            yield all_of(name, len(comparable) - len(other), len(comparable), "programs", note=_told(other))
        why = {each.name: each.incomparable for each in mine if each.incomparable}
        name = f"{family}: programs not compared, as they fail plainly or never compute the same"
        yield _reported(name, len(why), len(mine), _told(why))
    for mode in Mode:
        yield from survival(mode, found)


def survival(mode: Mode, found: Sequence[Found]) -> Iterator[Finding]:
    """How many programs would live through a fault of a neighbour, and the table of what keeps the others from it."""
    of = {each.name: each.survival[mode] for each in found if each.modes.get(mode, Run(failure="x")).digests}
    for when, words in (
        ("for the longest part of their time", {name: each.longest for name, each in of.items()}),
        ("at their end", {name: each.last for name, each in of.items()}),
    ):
        reasons = defaultdict[str, list[str]](list)
        for name, word in words.items():
            if word != YES:
                reasons[word or "no word"].append(name)
        most_first = sorted(reasons.items(), key=lambda each: (-len(each[1]), each[0]))
        name = f"{mode}: programs that would live through a neighbour's fault {when}"
        table = "; ".join(f"{reason}: {len(names)}: {', '.join(names)}" for reason, names in most_first)
        yield _reported(name, len(of) - sum(map(len, reasons.values())), len(of), table)
        for reason, names in most_first:
            yield _reported(f"{mode}: refused {when}: {reason}", len(names), len(of), ", ".join(names))


def not_compiled(why: Mapping[str, str], compiled: int) -> Finding:
    """The row of samples that do not compile here."""
    return _reported(f"{SAMPLES}: not compiled", len(why), len(why) + compiled, _told(why))


def _told(why: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {each}" for name, each in why.items())


def _reported(name: str, value: int, count: int, note: str) -> Finding:
    row = Row(name=name, value=value, count=count or None, unit="programs", bar="reported", holds=True, runs=1)
    return Finding(row, note)


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    if bench.programs.simulated:
        bench.say("programs: a simulated GPU has no libraries to run on it")
        return
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "programs",
    f"PyTorch, cuBLAS, NCCL, CuPy, and NVIDIA's samples (in ${samples.DIRECTORY}), unchanged, without a fault",
    measure,
)
