"""Results as a reader sees them: a table on the terminal, and the table between two marks of the README."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.schema import Figure, Number, Result, ResultError, Row

BEGIN: Final = "<!-- results:begin -->"
END: Final = "<!-- results:end -->"
HEADINGS: Final = ("Measured", "mpsguard", "Beside it", "Bar", "Holds")
NONE_YET: Final = "Nothing measured is on record yet."


def number(value: Number) -> str:
    """As many digits as are read: 65,567 and 0.9987 and 12.35."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def figure(of: Figure, unit: str) -> str:
    """One cell: `12.3 ms (11.9 to 14.0, n = 30)` or `0 of 4 clients`."""
    spaced_unit = f" {unit}" if unit else ""
    if of.spread is not None:
        low, high = of.spread
        of_how_many = f", n = {of.count:,}" if of.count is not None else ""
        return f"{number(of.value)}{spaced_unit} ({number(low)} to {number(high)}{of_how_many})"
    if of.count is not None:
        return f"{number(of.value)} of {of.count:,}{spaced_unit}"
    return f"{number(of.value)}{spaced_unit}"


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """One line of the table, in the order of HEADINGS."""
    beside = "" if row.peer is None else f"{row.peer.name}: {figure(row.peer, row.unit)}"
    return row.name, figure(row, row.unit), beside, row.bar, "yes" if row.holds else "NO"


def caption(result: Result) -> str:
    """Suite, machine, date, commit: where the numbers come from."""
    stack = [
        result.gpu or "no GPU",
        *([f"driver {result.driver}"] if result.driver else []),
        *([f"CUDA {result.cuda}"] if result.cuda else []),
    ]
    hash_, dash, dirty = result.commit.partition("-")
    return f"{result.suite}: {', '.join(stack)}; {result.date.isoformat()}, commit {hash_[:12]}{dash}{dirty}"


def markdown(results: Iterable[Result]) -> str:
    """The README's part, without its marks."""
    return "\n\n".join(_section(result) for result in results) or NONE_YET


def _section(result: Result) -> str:
    head = f"| {' | '.join(HEADINGS)} |"
    rule = f"|{'|'.join([' --- '] * len(HEADINGS))}|"
    lines = [_line(row) for row in result.rows]
    held = f"{sum(row.holds for row in result.rows)} of {len(result.rows)} hold"
    summary = f"<summary><b>{_escaped(caption(result))}</b>: {held}</summary>"
    return "\n".join(["<details>", summary, "", f"`{result.script}`", "", head, rule, *lines, "", "</details>"])


def _line(row: Row) -> str:
    *texts, holds = map(_escaped, cells(row))
    return f"| {' | '.join([*texts, holds if row.holds else f'**{holds}**'])} |"


def _escaped(text: str) -> str:
    """Nothing of a result may be taken for markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("`", "\\`")


def with_block(readme: str, block: str) -> str:
    """The README's text with its results part replaced; raises ResultError if the marks are not there, once each."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in before + after:
        raise ResultError(f"README.md: there must be one {BEGIN} and, after it, one {END}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


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
            table.add_row(*map(Text, cells(row)), style=None if row.holds else "bold red")
        console.print(table)
