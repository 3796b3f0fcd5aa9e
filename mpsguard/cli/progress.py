"""A progress bar for what takes long."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from mpsguard.cli.session import CliSession


class Bar:
    """A progress bar on standard error, or nothing where that is no terminal."""

    def __init__(self, progress: Progress, text: str) -> None:
        self._progress = progress
        self._task = progress.add_task(text, total=None)

    def expect(self, total: int) -> None:
        """Say how many bytes there are."""
        self._progress.update(self._task, total=total)

    def advance(self, size: int) -> None:
        """Say how many bytes were done since the last call."""
        self._progress.advance(self._task, size)


@contextmanager
def progress_bar(session: CliSession, text: str) -> Iterator[Bar]:
    """Show a progress bar."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=session.as_json or not console.is_terminal,
        transient=True,
    )
    with progress:
        yield Bar(progress, text)
