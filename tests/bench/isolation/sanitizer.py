"""compute-sanitizer over small programs, plainly and under the preload: does it find the same?

It is run without MPS, so that nothing of other clients can be among what it finds.
"""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.bench.core.bench import Bench
from tests.bench.core.client import client_environment
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding
from tests.bench.isolation import preloaded
from tests.bench.isolation.preloaded import Served
from tests.bench.results.schema import Row

TOOL: Final = "compute-sanitizer"
DEADLINE: Final = 120.0
_FINDING: Final = re.compile(r"^========= ((?:Invalid|Program hit|Leaked|Malloc/Free|Error|Warning)[^\n]*)$")
_SUMMARY: Final = re.compile(r"^========= ERROR SUMMARY: (\d+) error")
_VARIES: Final = re.compile(r"0x[0-9a-f]+|\(\d+,\d+,\d+\)")


@dataclass(frozen=True)
class Program:
    """A small program, and whether it does something wrong on purpose."""

    name: str
    command: tuple[str, ...]
    planted: bool = False


PROGRAMS: Final = (
    Program("a loop of kernels", ("worker", "--seconds", "0.2", "--memory", "33554432")),
    Program("allocations of 256 KiB", ("allocation_cost", "262144", "16", "2")),
    Program("a planted overrun", ("zone_overrun", "--past", "0"), planted=True),
)


@dataclass(frozen=True)
class Report:
    """What memcheck said: its findings with their counts, without addresses, and its own sum."""

    findings: Mapping[str, int]
    errors: int

    def describe(self) -> str:
        """In a few words."""
        return f"{self.errors} errors" + "".join(f", {count} x {what}" for what, count in self.findings.items())


@dataclass(frozen=True)
class Compared:
    """One program, in both arms."""

    program: Program
    plain: Report
    ours: Report
    served: Served | None

    @property
    def same(self) -> bool:
        """Whether the same was found, what was planted and nothing else, with the preload at work."""
        if self.program.planted:
            # It leaves without writing counters: that the preload was at work there is not shown.
            return self.plain == self.ours and self.plain.errors > 0
        return self.plain == self.ours and self.plain.errors == 0 and self.served is not None and self.served.placed > 0

    def finding(self) -> Finding:
        """Its row."""
        note = f"plain: {self.plain.describe()}; preload: {self.ours.describe()}"
        if self.served is not None:
            note += f"; allocations served, and left to the driver: {self.served.describe()}"
        row = Row(
            name=f"{TOOL} memcheck (without MPS), {self.program.name}: findings that differ under the preload",
            value=_difference(self.plain, self.ours),
            unit="findings",
            bar="0, what was planted is found, nothing else",
            holds=self.same,
            runs=1,
        )
        return Finding(row, note)


def _difference(one: Report, other: Report) -> int:
    first, second = Counter(one.findings), Counter(other.findings)
    return (first - second).total() + (second - first).total()


def missing() -> str:
    """Why there is none; empty if there is."""
    return "" if shutil.which(TOOL) else f"{TOOL} is not on PATH"


def compare(bench: Bench, program: Program) -> Compared:
    """Run it in both arms; SuiteError if memcheck does not say what it found."""
    report = bench.root / f"preload-sanitized-{program.command[0]}.txt"
    nobody = bench.root / "no-mps"
    plain = client_environment(nobody)
    by_itself = _run(bench, program, plain)
    ours = _run(bench, program, {**plain, **preloaded.variables(bench, report)})
    served = preloaded.served(report) if report.exists() else []
    compared = Compared(program, by_itself, ours, served[0] if served else None)
    bench.say(f"{TOOL}, {program.name}: {compared.finding().note}")
    return compared


def _run(bench: Bench, program: Program, environment: Mapping[str, str]) -> Report:
    name, *arguments = program.command
    command = [TOOL, "--tool", "memcheck", str(preloaded.program(bench, name)), *arguments]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=DEADLINE, check=False
        )
    except subprocess.TimeoutExpired:
        raise SuiteError(f"{TOOL}, {program.name}: no end within {DEADLINE:g} s") from None
    return parse(done.stdout + done.stderr)


def parse(text: str) -> Report:
    """What memcheck printed; SuiteError if there is no sum in it."""
    lines = [line.rstrip() for line in text.splitlines()]
    sums = [int(found[1]) for line in lines if (found := _SUMMARY.match(line))]
    if len(sums) != 1:
        raise SuiteError(f"{TOOL} gave no sum: {' | '.join(lines[-8:])}")
    said = (found[1] for line in lines if (found := _FINDING.match(line)))
    return Report(Counter(_VARIES.sub("...", each) for each in said), sums[0])
