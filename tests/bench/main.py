"""The command line: `scripts/gpu-suite SUITE [--only NAME] [--quick] [--out DIR]`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tests.bench.core import programs, table
from tests.bench.core.bench import Measurement
from tests.bench.core.errors import NotRunError, SuiteError
from tests.bench.core.finding import Finding
from tests.bench.core.runner import run
from tests.bench.results import origin
from tests.bench.results.recorder import Recorder
from tests.bench.results.schema import DIRECTORY, ResultError
from tests.bench.second_driver import samples
from tests.bench.simulated import simulated_programs
from tests.bench.suites import SUITES

FAILED, USAGE, NOT_RUN = 1, 2, 77
"""Exit statuses besides 0: a bar does not hold, wrong arguments, this machine cannot run the suite (as automake)."""


class _Parser(argparse.ArgumentParser):
    """One clear line for every mistake."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"gpu-suite: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run a suite; the exit status."""
    options = _parser().parse_args(arguments)
    if options.list:
        for name, measurements in SUITES.items():
            _print(name)
            for measurement in measurements:
                _print(f"  {measurement.name:16} {measurement.what}")
        return 0
    try:
        chosen = select(options.suite, options.only)
    except ValueError as error:
        _say(str(error))
        return USAGE
    try:
        held = _simulated(options, chosen) if options.simulated else _real(options, chosen)
    except NotRunError as error:
        _say(f"not run: {error}")
        return NOT_RUN
    except (SuiteError, ResultError) as error:
        _say(str(error))
        return FAILED
    return 0 if held else FAILED


def select(suite: str | None, only: list[str]) -> list[Measurement]:
    """The measurements asked for, in the suite's order; ValueError with what is allowed if there is none such."""
    if suite is None:
        raise ValueError(f"which suite? one of: {', '.join(SUITES)} (--list says more)")
    if suite not in SUITES:
        raise ValueError(f"no suite {suite!r}; there is: {', '.join(SUITES)}")
    names = [measurement.name for measurement in SUITES[suite]]
    for name in only:
        if name not in names:
            raise ValueError(f"no measurement {name!r} in {suite}; there is: {', '.join(names)}")
    return [measurement for measurement in SUITES[suite] if not only or measurement.name in only]


def _real(options: argparse.Namespace, chosen: list[Measurement]) -> bool:
    """Run on this machine's GPU and write the result file; True if every bar holds."""
    gpu = origin.gpu()
    if gpu.name is None:
        raise NotRunError("nvidia-smi names no NVIDIA GPU on this machine")
    programs.find_control()
    directory: Path | None = options.out
    if directory is None and not options.quick and not options.only:
        directory = DIRECTORY
    # At the start: a run that could not say its commit would be worth nothing at its end.
    script = " ".join(["scripts/gpu-suite", options.suite, *(f"--only {name}" for name in options.only)])
    recorder = Recorder(suite=options.suite, script=script) if directory is not None else None

    def record(found: Sequence[Finding]) -> None:
        if recorder is None or directory is None or not found:
            return
        for finding in found:
            finding.record(recorder)
        _say(f"written: {recorder.write(directory)}")

    findings = run(
        chosen,
        programs.build,
        quick=options.quick,
        deadline=options.deadline,
        keep_logs=_logs(options),
        say=_say,
        found=record,
    )
    _show(f"{options.suite} on {gpu.name}, driver {gpu.driver}, CUDA {gpu.cuda}", findings)
    if directory is None:
        _say(f"no result file: only a whole, full run goes to {DIRECTORY.name}, others where --out says")
    return bool(findings) and all(finding.row.holds for finding in findings)


def _simulated(options: argparse.Namespace, chosen: list[Measurement]) -> bool:
    """Run without a GPU; True if every bar holds but those of times, which say nothing here."""
    findings = run(
        chosen,
        simulated_programs,
        quick=options.quick,
        deadline=options.deadline,
        keep_logs=_logs(options),
        say=_say,
    )
    _show(f"{options.suite} on a SIMULATED GPU: tests the suite, measures nothing", findings)
    return bool(findings) and all(finding.row.holds or finding.samples for finding in findings)


def _logs(options: argparse.Namespace) -> Path | None:
    if options.out is None:
        return None
    options.out.mkdir(parents=True, exist_ok=True)
    return Path(options.out) / f"{options.suite}-logs.tgz"


def _show(title: str, findings: list[Finding]) -> None:
    _print(title)
    for line in table.lines(findings):
        _print(line)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpu-suite",
        description="Measure mpsguard on a machine with an NVIDIA GPU.",
        epilog=f"In the environment: {samples.DIRECTORY}, a directory with Samples and Common of NVIDIA's cuda-samples,"
        " for `second_driver --only programs`.",
    )
    parser.add_argument("suite", nargs="?", help="what to run; --list shows the choice")
    parser.add_argument("--list", action="store_true", help="print suites and measurements")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this one alone; repeatable")
    parser.add_argument("--quick", action="store_true", help="few runs: shows that it works, measures nothing well")
    parser.add_argument("--out", type=Path, metavar="DIR", help="result file, and logs if something fails, go there")
    parser.add_argument("--simulated", action="store_true", help="simulated MPS and clients, no GPU, no result file")
    parser.add_argument("--deadline", type=float, default=540.0, metavar="S", help="end the run after S seconds (540)")
    return parser


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _say(text: str) -> None:
    sys.stderr.write(f"gpu-suite: {text}\n")
    sys.stderr.flush()
