"""A stock MPS control daemon in a private directory: the peer that everything is measured against."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.core.client import client_environment
from tests.bench.core.control_ui import ControlUi
from tests.bench.core.errors import SuiteError
from tests.harness.ending import ended
from tests.harness.leftovers import end_all, find

START: Final = 30.0
"""Seconds the daemon may take until it listens."""


@dataclass(frozen=True)
class StockDaemon:
    """A running daemon: where clients find it, and its command line."""

    name: str
    pipe_directory: Path
    ui: ControlUi


@contextmanager
def stock_daemon(control: str, directory: Path, name: str = "stock") -> Iterator[StockDaemon]:
    """Start `nvidia-cuda-mps-control -d` with pipe and log directory under `directory`, and end it afterwards.

    `-d` returns once the daemon listens (its manual page), so there is nothing to poll. SuiteError if it does not.
    """
    pipe, log = directory / "pipe", directory / "log"
    for path in (pipe, log):
        path.mkdir(parents=True)
    ui = ControlUi(control, pipe)
    try:
        _start(control, client_environment(pipe) | {"CUDA_MPS_LOG_DIRECTORY": str(log)}, directory / "start.txt")
        yield StockDaemon(name, pipe, ui)
    finally:
        quit_daemon(ui, directory)


def quit_daemon(ui: ControlUi, directory: Path) -> None:
    """`quit`, wait for daemon and server to be gone, and end by force what is left of them under `directory`."""
    with ExitStack() as stack:
        processes = [stack.enter_context(handle) for handle in find(directory)]
        if processes:
            try:
                ui.ask("quit -t 2", timeout=15.0)
                for process in processes:
                    ended(process, 5.0)
            finally:
                end_all(directory)


def _start(control: str, environment: dict[str, str], said: Path) -> None:
    # A file for its words: the daemon left behind keeps what it inherited open, and a pipe would never end.
    with said.open("w") as file:
        try:
            subprocess.run(
                [control, "-d"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                check=True,
                timeout=START,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SuiteError(
                f"the stock daemon did not start: {error}; {said.read_text(errors='replace').strip()}"
            ) from None
