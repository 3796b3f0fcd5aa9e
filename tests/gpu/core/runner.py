"""Runs measurements one after the other; one that cannot be made is a row that does not hold, and the next one runs."""

import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.gpu.core.bench import Bench, Measurement
from tests.gpu.core.errors import SuiteError
from tests.gpu.core.finding import Finding, not_measured
from tests.gpu.core.programs import Programs
from tests.gpu.core.stop import StopRunError, stoppable
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
            bench = Bench(root, programs, quick, say, ends_at)
            for measurement in measurements:
                begin, before = time.monotonic(), len(findings)
                say(f"{measurement.name}: {measurement.what}")
                try:
                    _measure(measurement, bench, findings)
                finally:
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
            findings.append(finding)  # noqa: PERF402 (what came before an error stays)
    except StopRunError as error:
        findings.append(not_measured(measurement.name, str(error)))
        raise
    except (SuiteError, OSError, ValueError) as error:  # TimeoutError is an OSError
        bench.say(f"{measurement.name}: {error}")
        findings.append(not_measured(measurement.name, str(error)))


def _archive(root: Path, path: Path) -> None:
    """What is left of the private directory, without binaries, sockets and pipes."""
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and not file.is_symlink() and file.suffix in (".log", ".txt", ".toml", ".jsonl"):
                archive.add(file, file.relative_to(root))
