"""Repetition alone: culprits of SM faults with work in flight, among innocents, at a guard; what becomes of each."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DIED, Outcome
from tests.bench.core.finding import Finding, all_of, none_of, sampled
from tests.bench.core.guard import Guard, Options
from tests.bench.isolation import preloaded
from tests.bench.isolation.partial import kept, not_made
from tests.bench.second_driver import programs, second, trials
from tests.bench.second_driver.idle import ended
from tests.bench.second_driver.programs import State
from tests.bench.second_driver.second import Mode, Takeover

FAULTS: Final = ("trap", "misaligned", "shared")
ROUNDS: Final = 5
QUICK_FAULTS: Final = ("misaligned", "trap")
TRIES: Final = 3
"""Of a fault that does not strike: Xid 13 for a misaligned address, no Xid 43, and the kernel went on (580.159.04)."""
STEPS: Final = 600
"""Rounds of each program, of 8 ms; the culprit faults in the 200th one."""
_START: Final = 60.0
_GO_ON: Final = 60.0
_SAVED: Final = 0.5
"""Seconds in which an idle program's variables are saved, and a hot second driver is ready."""
_NAMED: Final = 3.0
"""Seconds after the last end in which the guard has named a culprit."""
_CLASSES: Final = frozenset({"sm", "mmu", "mmu_or_sm"})


@dataclass(frozen=True)
class Innocent:
    """A program beside the culprit: what it reported of its takeover, and how it ended."""

    mode: Mode
    outcome: Outcome
    takeover: Takeover | None

    @property
    def went_on(self) -> bool:
        """Whether it finished by its second driver, its work repeated alone."""
        return self.outcome.ok and self.takeover is not None and self.takeover.taken_over and self.takeover.alone > 0


@dataclass(frozen=True)
class Case:
    """One culprit in a lane with innocents, and a program on the other lane."""

    fault: str
    mode: Mode
    culprit: Takeover | None
    innocents: tuple[Innocent, ...]
    beside: Outcome
    """Of the program on the other lane, under stock MPS as it were."""
    named: str
    """The confidence with which the guard named the culprit of the lane's fault; empty: it did not."""
    accused: int
    """Verdicts that name another process."""

    @property
    def stopped(self) -> bool:
        """Whether the culprit's repetition faulted, and it has its error."""
        return self.culprit is not None and self.culprit.reason == "repeated_fault"

    @property
    def equal(self) -> int:
        """How many innocents computed what the undisturbed program did."""
        wanted = trials.digest(self.beside)
        going = [trials.digest(each.outcome) for each in self.innocents if each.went_on]
        return 0 if wanted is None else going.count(wanted)

    @property
    def is_right(self) -> bool:
        """Whether all went as it should."""
        return self.stopped and self.named == "proven" and self.beside.ok and self.equal == len(self.innocents)

    def describe(self) -> str:
        """In a few words."""
        culprit = self.culprit.describe() if self.culprit is not None else "no word"
        innocents = ", ".join(each.takeover.describe() if each.takeover else "no word" for each in self.innocents)
        beside = "lives" if self.beside.ok else "lost"
        return f"culprit {culprit}, named: {self.named or 'no'}; innocents: {innocents}; other lane {beside}"


class NotStruckError(SuiteError):
    """The fault ended nothing, not even the culprit."""


@dataclass
class Study:
    """All of it; `rows` shows what there is at any time."""

    bench: Bench
    cases: list[Case] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    preload: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def wanted(self) -> list[tuple[str, Mode]]:
        """The faults to commit, and when the culprit's second driver is made."""
        if self.bench.quick:
            return list(zip(QUICK_FAULTS, Mode, strict=True))
        modes = list(Mode)
        return [(fault, modes[number % 2]) for number in range(ROUNDS) for fault in FAULTS]

    def make(self) -> None:
        """Build, then one case after the other, each at a guard of its own."""
        self.command = (*programs.all_of_them(self.bench, State.BUSY)[0][0].command, str(STEPS))
        self.preload = preloaded.variables(self.bench)
        for number, (fault, mode) in enumerate(self.wanted):
            try:
                self.cases.append(self._struck(number, fault, mode))
            except (SuiteError, TimeoutError) as error:
                self.errors.append(f"{fault}, {mode}: {error}")
                self.bench.say(f"{fault}, {mode}: {error}")
            else:
                self.bench.say(f"{fault}, {mode}: {self.cases[-1].describe()}")

    def _struck(self, number: int, fault: str, mode: Mode) -> Case:
        """Make a case until its fault strikes: with another server busy, the driver may log it and end nothing."""
        for left in reversed(range(TRIES)):
            with self.bench.guard(options=Options(standby=True)) as guard, Clients() as clients:
                try:
                    return self._case(number, fault, mode, guard, clients)
                except NotStruckError:
                    if not left:
                        raise
                    self.bench.say(f"{fault}, {mode}: the fault did not strike: again")
        raise AssertionError

    def _case(self, number: int, fault: str, mode: Mode, guard: Guard, clients: Clients) -> Case:
        def start(role: str, mode: Mode, *more: str) -> Client:
            report = self._report(number, role)
            report.unlink(missing_ok=True)  # of an earlier try
            variables = {**self.preload, **second.variables(mode, None, report, second.SPARE)}
            return clients.start([*self.command, *more], guard.pipe_directory, f"{role}, {mode}", variables)

        beside = clients.start(self.command, guard.pipe_directory / "standby", "the other lane's")
        culprit = start("culprit", mode, fault)
        innocents = {each: start(each.value, each) for each in Mode}
        there = [beside, culprit, *innocents.values()]
        for each in there:
            each.wait_for("idle", _START)
        time.sleep(_SAVED)
        for each in there:
            each.go()
        for each in there:
            each.wait_for("busy", _START)
        culprit.wait_for("injected", _START)
        if ended(culprit, _GO_ON).find(DIED) is None:
            raise NotStruckError("the fault did not strike")
        ends = tuple(
            Innocent(each, ended(client, _GO_ON), second.takeover(self._report(number, each.value)))
            for each, client in innocents.items()
        )
        rest = ended(beside, _GO_ON)
        named, accused = self._verdict(guard, culprit.pid)
        return Case(fault, mode, second.takeover(self._report(number, "culprit")), ends, rest, named, accused)

    def _report(self, number: int, role: str) -> Path:
        return self.bench.root / f"alone-{number}-{role}.jsonl"

    def _verdict(self, guard: Guard, culprit: int) -> tuple[str, int]:
        """How sure the guard is of the culprit of the lane's fault, and how many others it names."""
        ends = time.monotonic() + _NAMED
        while True:
            last = {each["id"]: each for each in guard.incidents()}
            found = [each for each in last.values() if each["fault_class"] in _CLASSES and each["culprit"] is not None]
            named = [each for each in found if each["culprit"] == culprit and _has_victims(each)]
            if named or time.monotonic() > ends:
                return (named[0]["confidence"] if named else ""), len(found) - len(_of(found, culprit))
            time.sleep(0.1)

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        count, cases = len(self.wanted), self.cases
        innocents = [innocent for each in cases for innocent in each.innocents]
        stopped, proven = sum(each.stopped for each in cases), sum(each.named == "proven" for each in cases)
        accused, lost = sum(each.accused for each in cases), sum(not each.beside.ok for each in cases)
        equal = sum(each.equal for each in cases)
        told = "; ".join(f"{each.fault}, {each.mode}: {each.describe()}" for each in cases if not each.is_right)
        yield all_of("culprits that fault again alone, and get their error", stopped, count, "programs", note=told)
        yield all_of("culprits of a lane's fault that are proven by that", proven, count, "culprits")
        yield none_of("innocents that a verdict names", accused, len(innocents), "programs")
        yield none_of("programs of the other lane that a repetition ends", lost, len(cases), "programs")
        yield all_of("innocents that go on with equal results, bit for bit", equal, 2 * count, "programs")
        for mode in Mode:
            made = [each.takeover for each in innocents if each.mode is mode and each.went_on and each.takeover]
            whole, alone = [each.milliseconds for each in made], [each.alone for each in made]
            if made:
                yield _times(f"takeover, {mode}, with the repetition alone", whole)
                yield _times(f"repetition alone, {mode}, with its context", alone)
        yield not_made("repetition alone", self.errors, len(cases), count)


def _times(name: str, milliseconds: Sequence[float]) -> Finding:
    return sampled(name, milliseconds, unit="ms", bar="reported", holds=True)


def _of(found: Sequence[Mapping[str, Any]], culprit: int) -> list[Mapping[str, Any]]:
    return [each for each in found if each["culprit"] == culprit]


def _has_victims(incident: Mapping[str, Any]) -> bool:
    return bool(incident["victims"] or incident["survived"])


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "alone", "culprits and innocents with work in flight, which they repeat alone after the fault", measure
)
