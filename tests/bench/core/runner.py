"""Runs measurements one after the other; one that cannot be made is a row that does not hold, and the next one runs."""

import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, not_measured
from tests.bench.core.programs import Programs
from tests.bench.core.stop import StopRunError, stoppable, uninterrupted
from tests.harness.leftovers import end_all


def run(
    measurements: Sequence[Measurement],
    build: Callable[[Path], Programs],
    *,
    quick: bool,
    deadline: float,
    keep_logs: Path | None,
    say: Callable[[str], None],
    found: Callable[[Sequence[Finding]], None] = lambda _: None,
) -> list[Finding]:
    """The findings of all measurements, made within `deadline` seconds, with nothing left running.

    `keep_logs` names an archive for the daemons' logs, written when something went wrong. `found` gets the findings of
    each measurement as soon as it has ended: a run that is killed later loses only the one under way.
    """
    findings: list[Finding] = []
    root = Path(tempfile.mkdtemp(prefix="gpu-suite-"))
    ends_at = time.monotonic() + deadline
    try:
        with suppress(StopRunError), stoppable(deadline):
            programs = build(root)
            say(f"programs: {time.monotonic() - (ends_at - deadline):.0f} s")
            bench = Bench(root, programs, quick, say, ends_at, keep_logs.parent if keep_logs else None)
            for number, measurement in enumerate(measurements):
                begin, before = time.monotonic(), len(findings)
                say(f"{measurement.name}: {measurement.what}")
                try:
                    _measure(measurement, bench, findings)
                except StopRunError as error:
                    findings += [not_measured(each.name, f"not begun: {error}") for each in measurements[number + 1 :]]
                    raise
                finally:
                    with uninterrupted():
                        found(findings[before:])
                say(f"{measurement.name}: {time.monotonic() - begin:.0f} s")
    finally:
        if left := end_all(root):
            findings.append(not_measured("clean-up", f"still ran at the end: {'; '.join(left)}"))
            found(findings[-1:])
        if keep_logs and not all(finding.row.holds for finding in findings):
            _archive(root, keep_logs)
        shutil.rmtree(root, ignore_errors=True)
    return findings


def _measure(measurement: Measurement, bench: Bench, findings: list[Finding]) -> None:
    try:
        for finding in measurement.run(bench):
            findings.append(_apart(finding, findings))
    except StopRunError as error:
        findings.append(_apart(not_measured(measurement.name, str(error)), findings))
        raise
    except (SuiteError, OSError, ValueError) as error:  # TimeoutError is an OSError
        bench.say(f"{measurement.name}: {error}")
        findings.append(_apart(not_measured(measurement.name, str(error)), findings))


def _apart(finding: Finding, others: Sequence[Finding]) -> Finding:
    """A finding with a name of its own: of rows that failed alike, the file would have none, nor any other row."""
    names = {each.row.name for each in others}
    if finding.row.name not in names:
        return finding
    name = next(name for number in count(2) if (name := f"{finding.row.name} ({number})") not in names)
    return replace(finding, row=msgspec.structs.replace(finding.row, name=name))


def _archive(root: Path, path: Path) -> None:
    """What is left of the private directory, without binaries, sockets and pipes."""
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and not file.is_symlink() and file.suffix in (".log", ".txt", ".toml", ".jsonl"):
                archive.add(file, file.relative_to(root))
