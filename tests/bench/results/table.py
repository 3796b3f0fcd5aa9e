"""Results as a reader sees them: a row's figure as text, and tables on the terminal."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.bench.results.schema import Figure, Number, Result, Row

HEADINGS: Final = ("Measured", "mpsguard", "Beside it", "Bar", "Holds")
NONE_YET: Final = "Nothing measured is on record yet."
REPORTED: Final = "reported"
"""A bar that begins so is none: the figure is told, and neither holds nor fails."""


def number(value: Number) -> str:
    """As many digits as are read: 65,567 and 0.9987 and 12.35."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def figure(of: Figure, unit: str) -> str:
    """One cell: `12.3 ms (11.9 to 14.0, n = 30)`, `12.3 ms` for one sample, or `0 of 4 clients`."""
    spaced_unit = f" {unit}" if unit else ""
    if of.spread is not None and of.count != 1:
        low, high = of.spread
        of_how_many = f", n = {of.count:,}" if of.count is not None else ""
        return f"{number(of.value)}{spaced_unit} ({number(low)} to {number(high)}{of_how_many})"
    if of.spread is None and of.count is not None:
        return f"{number(of.value)} of {of.count:,}{spaced_unit}"
    return f"{number(of.value)}{spaced_unit}"


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """One line of the table, in the order of HEADINGS."""
    beside = "" if row.peer is None else f"{row.peer.name}: {figure(row.peer, row.unit)}"
    ours = figure(row, row.unit) if row.withdrawn is None else f"withdrawn: {row.withdrawn}"
    return row.name, ours, beside, row.bar, verdict(row)


def verdict(row: Row) -> str:
    """The last cell: "yes", "NO", or "-" for a row without a bar, and for one that is withdrawn."""
    if fails(row):
        return "NO"
    if row.withdrawn is not None:
        return "-"
    return "-" if row.bar.startswith(REPORTED) else "yes"


def fails(row: Row) -> bool:
    """Whether the figure misses its bar."""
    return not row.holds and row.withdrawn is None


def held(result: Result) -> tuple[int, int]:
    """How many bars hold, of how many."""
    verdicts = [verdict(row) for row in result.rows]
    return verdicts.count("yes"), verdicts.count("yes") + verdicts.count("NO")


def caption(result: Result) -> str:
    """Suite, machine, date, commit: where the numbers come from."""
    stack = [
        result.gpu or "no GPU",
        *([f"driver {result.driver}"] if result.driver else []),
        *([f"CUDA {result.cuda}"] if result.cuda else []),
    ]
    hash_, dash, dirty = result.commit.partition("-")
    return f"{result.suite}: {', '.join(stack)}; {result.date.isoformat()}, commit {hash_[:12]}{dash}{dirty}"


def show(results: Iterable[Result], console: Console) -> None:
    """Print each result as a table."""
    results = list(results)
    if not results:
        console.print(NONE_YET)
    for result in results:
        table = Table(title=Text(caption(result)), title_justify="left", caption=Text(result.script))
        for heading in HEADINGS:
            table.add_column(heading, overflow="fold")
        for row in result.rows:
            # Text, not str: a bar such as "[0, 3] ms" is no markup.
            table.add_row(*map(Text, cells(row)), style="bold red" if fails(row) else None)
        console.print(table)
