"""Tables for people: one line a row; on a terminal with colours, in a pipe plain and whole.

rich is loaded with the first table: a command that prints JSON has none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_COLOURS = {
    "ACTIVE": "green",
    "healthy": "green",
    "INITIALIZING": "yellow",
    "UNKNOWN": "yellow",
    "degraded": "yellow",
    "FAULT": "red",
    "FAILING": "red",
    "RECOVERING": "yellow",
    "fault": "red",
    "DOWN": "red",
}


def show_table(
    console: "Console",
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    optional: Sequence[str] = (),
    cut: str = "",
) -> None:
    """Print a table, one line a row, within the console's width.

    Cells are taken literally: no markup of ours can hide in a client's command line.

    Args:
        console: where to.
        columns: their headings.
        rows: their cells, in the order of `columns`.
        optional: headings that are left out where the width does not suffice, the first of them first; a last line
            names them.
        cut: heading of the column that ends in "…" where that is still not enough. No other cell is ever cut.
    """
    from rich import box  # noqa: PLC0415
    from rich.cells import cell_len  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    cells = [[str(cell) for cell in row] for row in rows]
    widths = {
        heading: max([len(heading), *(cell_len(row[number]) for row in cells)])
        for number, heading in enumerate(columns)
    }
    least = {name: min(width, _SHORTEST) if name == cut else width for name, width in widths.items()}
    left_out: list[str] = []
    for heading in optional:
        if _total(least, left_out) <= console.width:
            break
        left_out.append(heading)
    room = console.width - _total(least, left_out)
    kept = [number for number, heading in enumerate(columns) if heading not in left_out]
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number in kept:
        made.add_column(columns[number], no_wrap=True)
    for row in cells:
        shown = []
        for number in kept:
            cell = Text(row[number], style=_COLOURS.get(row[number], ""))
            if columns[number] == cut:
                cell.truncate(least[columns[number]] + max(0, room), overflow="ellipsis")
            shown.append(cell)
        made.add_row(*shown)
    console.print(made, crop=False)
    if left_out:
        console.print(Text(f"not shown at this width: {', '.join(left_out)} (--json has all)", style="dim"))


_SHORTEST = 24
"""Characters that are left of a cell that is cut, at least."""
_BETWEEN = 3
"""Characters between two columns."""


def _total(widths: Mapping[str, int], left_out: Sequence[str]) -> int:
    kept = [width for heading, width in widths.items() if heading not in left_out]
    return sum(kept) + _BETWEEN * (len(kept) - 1)


def coloured(word: str) -> "Text":
    """A state or a health in its colour."""
    from rich.text import Text  # noqa: PLC0415

    return Text(word, style=_COLOURS.get(word, ""))
