"""Output of the tour: titles, two columns of live lines, the summary. Adds no content of its own."""

import time
from collections.abc import Sequence
from typing import Final, Literal

from rich import box
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.demo.fact import NO_COUNTERPART, Cell
from examples.demo.masks import masked

WIDTH: Final = 100
"""Columns of a transcript."""
NARROWEST: Final = 72
"""Minimum width: two narrower columns are unreadable, so a narrower terminal wraps the lines itself."""
WIDEST: Final = 140

_RATIOS: Final = (6, 9, 10)
"""Widths of the summary's columns; the guard's has the longest texts."""

Side = Literal["stock", "guard"]
NAMES: Final[dict[Side, str]] = {"stock": "stock MPS", "guard": "through mpsguard"}


class Screen:
    """The console, its width, and the pauses for the reader."""

    def __init__(self, *, transcript: bool, fast: bool) -> None:
        self._transcript = transcript
        self._pause = 0.0 if fast else 1.0
        self._console = Console(highlight=False, soft_wrap=False)
        if transcript:
            self._console = Console(width=WIDTH, color_system=None, force_terminal=False, highlight=False)
        self._width = min(max(self._console.width, NARROWEST), WIDEST)

    def banner(self, text: str) -> None:
        """Print a boxed line, at the beginning and at the end."""
        self._print(Panel(Text(text, style="bold"), box=box.HEAVY, border_style="yellow"))

    def scene(self, title: str, announcement: str) -> None:
        """Print a scene's title and what is about to happen."""
        self._print("")
        self._print(Text(title, style="bold cyan"))
        self._print(Text(announcement))
        self._pace(1.5)
        self._columns(*(Text(name, style="bold underline") for name in NAMES.values()))

    def left_out(self, title: str, why: str) -> None:
        """Print the title of a scene that is not played on this machine, and why."""
        self._print("")
        self._print(Text(title, style="bold cyan"))
        self._print(Text(why))

    def say(self, side: Side, text: str) -> None:
        """Print a live line in the column of that side."""
        self._columns(*(Text(text if side == each else "") for each in NAMES))

    def pid(self, value: int) -> str:
        """Return a pid in parentheses; empty in a transcript."""
        return "" if self._transcript else f" (pid {value})"

    def command(self, line: str, output: str, pids: Sequence[int], directory: str) -> None:
        """Print a command and its output, cut at the width of the screen."""
        self._print("")
        self._print(Text(f"$ {line}", style="bold"))
        if self._transcript:
            output = masked(output, pids, directory)
        for each in output.splitlines():
            self._print(Text(each.rstrip()), cut=True)
        self._print("")

    def outcome(self, stock: Cell, guard: Cell) -> None:
        """Print how the scene ended on both sides."""
        self._columns(_cell(stock, "=> "), _cell(guard, "=> "))
        self._pace(1.5)

    def summary(self, rows: Sequence[tuple[str, Cell, Cell]]) -> None:
        """Print the table of all scenes."""
        table = Table("scene", *NAMES.values(), box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, width=self._width)
        for column, ratio in zip(table.columns, _RATIOS, strict=True):
            column.ratio = ratio
        for name, stock, guard in rows:
            table.add_row(name, _cell(stock), _cell(guard))
        self._print("")
        self._print(table)

    def lines(self, *texts: str) -> None:
        """Print plain lines."""
        for text in texts:
            self._print(Text(text))

    def _columns(self, stock: Text, guard: Text) -> None:
        grid = Table.grid(padding=(0, 1))
        half = (self._width - 4) // 2
        for width in (half, 1, half):
            grid.add_column(width=width)
        lines = max(len(text.wrap(self._console, half)) for text in (stock, guard))
        grid.add_row(stock, Text("\n".join("│" * lines), style="dim"), guard)
        self._print(grid)

    def _print(self, what: RenderableType, *, cut: bool = False) -> None:
        with self._console.capture() as printed:
            self._console.print(what, width=self._width, no_wrap=cut or None, overflow="ellipsis" if cut else None)
        # rich pads columns with blanks; remove them at the ends of lines.
        self._console.file.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))
        self._console.file.flush()

    def _pace(self, seconds: float) -> None:
        # A pause for the reader; it synchronizes nothing.
        time.sleep(seconds * self._pause)


def _cell(facts: Cell, lead: str = "") -> Text:
    if not facts:
        return Text(NO_COUNTERPART, style="dim")
    lines = []
    for fact in facts:
        style = "bold reverse red" if not fact.as_expected else "red" if fact.harm else "green"
        lines.append(Text(f"{lead}{fact}", style=style))
    return Text("\n").join(lines)
