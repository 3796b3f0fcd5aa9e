"""The command line: `scripts/results [--write-summary]`."""

import argparse
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.bench.results import summary
from tests.bench.results.schema import DIRECTORY, ResultError, load_all
from tests.bench.results.table import show

SUMMARY: Final = "SUMMARY.md"


def main(arguments: list[str] | None = None) -> int:
    """Show the results. Exit status: 0 all rows hold, 1 one does not, 2 a file is not in order."""
    options = _parser().parse_args(arguments)
    try:
        results = load_all(options.directory)
        if options.write_summary:
            text = summary.markdown(results, summary.load(options.directory))
            (options.directory / SUMMARY).write_text(text, encoding="utf-8")
            return 0
    except ResultError as error:
        sys.stderr.write(f"results: {error}\n")
        return 2
    show(results, Console())
    return 0 if all(result.holds for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="results", description="Show the measured results.")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="where the result files are")
    parser.add_argument("--write-summary", action="store_true", help=f"write {SUMMARY} in that directory instead")
    return parser
