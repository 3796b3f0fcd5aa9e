"""`python -m tests.bench.triage [--faults A,B] [--repetitions N] [--arms stock,guarded] [--cells FILE] ...`.

Parts of the matrix, with the cells kept in `--out`; `--cells` (repeatable) names the files of earlier parts: their
cells are not made again and count in the rows. `--merge` makes the table and the result file of such files alone, on
any machine. Everything else (--simulated, --quick) is as with `scripts/gpu-suite`.
"""

import argparse
import datetime
import sys
from pathlib import Path
from typing import Final

from fault_injection import catalog
from fault_injection.catalog import Fault
from tests.bench import main as suite
from tests.bench.core import table
from tests.bench.core.errors import SuiteError
from tests.bench.results.schema import Result, ResultError, encode
from tests.bench.suites import SUITES
from tests.bench.triage import rows
from tests.bench.triage.cells import ARMS, CellFile, file_name, merged, read, write
from tests.bench.triage.matrix import NAME, Plan, measurement

_SPARE: Final = 30.0
"""Seconds between the last cell's begin and the runner's own deadline: for that cell, and to end the daemons."""


def main(arguments: list[str] | None = None) -> int:
    """Run a part, or put parts together; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        before = tuple(read(path) for path in options.cells)
        if options.merge:
            return _merge(merged(before), options.out)
        if before:
            merged(before)
    except (SuiteError, ResultError) as error:
        sys.stderr.write(f"triage: {error}\n")
        return suite.FAILED
    plan = Plan(
        faults=options.faults,
        arms=options.arms,
        repetitions=options.repetitions,
        seconds=max(options.deadline - _SPARE, 1.0),
        before=before,
        out=options.out,
    )
    SUITES[NAME] = (measurement(plan),)
    passed = [NAME, "--deadline", str(options.deadline)]
    passed += ["--simulated"] * options.simulated + ["--quick"] * options.quick
    passed += ["--out", str(options.out)] if options.out else []
    return suite.main(passed)


def _merge(cells: CellFile, out: Path | None) -> int:
    """Table and result file of cells that were made before."""
    found = list(rows.findings(cells.cells, 0))
    for line in table.lines(found):
        sys.stdout.write(line + "\n")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write(out / file_name(cells.date), cells)
        result = Result(
            suite=NAME,
            date=datetime.date.fromisoformat(cells.date),
            commit=cells.commit,
            gpu=cells.gpu,
            driver=cells.driver,
            cuda=cells.cuda,
            script=f"scripts/gpu-suite {NAME}",
            rows=tuple(finding.row for finding in found),
        )
        (out / result.file_name).write_bytes(encode(result))
    return 0 if all(finding.row.holds for finding in found) else suite.FAILED


def _faults(text: str) -> tuple[Fault, ...]:
    """Names, numbers or classes, separated by commas."""
    chosen: list[Fault] = []
    for word in text.split(","):
        found = [fault for fault in catalog.FAULTS if word in (fault.name, str(fault.number), fault.fault_class)]
        if not found:
            raise argparse.ArgumentTypeError(f"no fault {word!r}; docs/reference/faults.md lists them")
        chosen += [fault for fault in found if fault not in chosen]
    return tuple(chosen)


def _arms(text: str) -> tuple[str, ...]:
    for word in text.split(","):
        if word not in ARMS:
            raise argparse.ArgumentTypeError(f"no arm {word!r}; there is: {', '.join(ARMS)}")
    return tuple(text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.triage", description="The matrix of faults, or a part."
    )
    parser.add_argument("--faults", type=_faults, default=catalog.FAULTS, metavar="A,B", help="names, numbers, classes")
    parser.add_argument("--arms", type=_arms, default=ARMS, metavar="A,B", help="stock, guarded or both")
    parser.add_argument("--repetitions", type=int, default=Plan.repetitions, metavar="N")
    parser.add_argument(
        "--cells", type=Path, action="append", default=[], metavar="FILE", help="go on with these cells"
    )
    parser.add_argument("--merge", action="store_true", help="run nothing: the table of the --cells alone")
    parser.add_argument("--out", type=Path, metavar="DIR", help="cells, evidence bundles and the result file go there")
    parser.add_argument("--deadline", type=float, default=540.0, metavar="S", help="end the run after S seconds (540)")
    parser.add_argument("--simulated", action="store_true", help="simulated MPS and clients, no GPU")
    parser.add_argument("--quick", action="store_true", help="one repetition")
    return parser


if __name__ == "__main__":
    sys.exit(main())
