"""The command line: `scripts/results [--markdown | --write-summary]`."""

import argparse
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.gpu.results.schema import DIRECTORY, ResultError, load_all, newest, superseded
from tests.gpu.results.table import markdown, show

SUMMARY: Final = "SUMMARY.md"


def main(arguments: list[str] | None = None) -> int:
    """Show the newest result of each suite. Exit status: 0 all rows hold, 1 one does not, 2 a file is not in order."""
    options = _parser().parse_args(arguments)
    try:
        every = load_all(options.directory)
        results = newest(every)
        if options.write_summary:
            (options.directory / SUMMARY).write_text(markdown(results, superseded(every)), encoding="utf-8")
            return 0
    except ResultError as error:
        sys.stderr.write(f"results: {error}\n")
        return 2
    if options.markdown:
        sys.stdout.write(markdown(results, superseded(every)))
    else:
        show(results, Console())
    return 0 if all(result.holds for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="results", description="Show the newest measured result of each suite.")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="where the result files are")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print the summary")
    form.add_argument("--write-summary", action="store_true", help=f"write it to {SUMMARY} in that directory")
    return parser
