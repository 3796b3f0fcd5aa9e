"""The command line: `scripts/demo [--real] [--fast] [--transcript]`."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from examples.demo import machine, tour
from examples.demo.machine import Machine
from examples.demo.scenes import SCENES
from examples.demo.screen import Screen
from examples.demo.tour import Row
from tests.bench.core.errors import NotRunError, SuiteError
from tests.bench.core.stop import StopRunError

FAILED, USAGE, NOT_RUN = 1, 2, 77
"""Exit statuses besides 0: something differs from what the tour expects, or it was stopped; usage; cannot run here."""
_DEADLINE: Final = 240.0
_NEXT_STEPS: Final = (
    "To try next:",
    "  docs/start/try-it.md    the same by hand, a minute: a killed client is named, its neighbours go on",
    "  make test               every test this machine can run",
    "  make demo REAL=1        this tour on a machine with a GPU",
    "  sudo scripts/install    the guard for good: README.md, Install",
)


class _Parser(argparse.ArgumentParser):
    """Reports every mistake in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"demo: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tour and return the exit status."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal's encoding has lines and boxes
    try:
        return _give(options)
    except BrokenPipeError:
        # The reader has gone (`| head`); flushing Python's buffer at the end must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _give(options: argparse.Namespace) -> int:
    try:
        on = machine.real() if options.real else machine.simulated()
        screen = Screen(transcript=options.transcript, fast=options.fast)
        screen.banner(on.banner)
        rows = tour.play(SCENES, on, screen, _DEADLINE)
    except NotRunError as error:
        sys.stderr.write(f"demo: not run: {error}\n")
        return NOT_RUN
    except (SuiteError, StopRunError) as error:
        sys.stderr.write(f"demo: {error}; what it had started was ended\n")
        return FAILED
    return _sum_up(rows, on, screen)


def _sum_up(rows: Sequence[Row], on: Machine, screen: Screen) -> int:
    screen.summary(rows)
    strange = sum(not fact.as_expected for _, *cells in rows for cell in cells for fact in cell)
    if strange:
        screen.lines("", f"{strange} observation(s) differ from what this tour expects; they are marked above.")
    screen.lines("", *_NEXT_STEPS, "")
    screen.banner(on.banner)
    return FAILED if strange else 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="demo", description="A tour of mpsguard beside stock MPS, on a simulated GPU.")
    parser.add_argument("--real", action="store_true", help="on this machine's GPU, with NVIDIA's MPS daemon")
    parser.add_argument("--fast", action="store_true", help="no pauses for the reader")
    parser.add_argument("--transcript", action="store_true", help="no colours, 100 columns, pids and times masked")
    return parser
