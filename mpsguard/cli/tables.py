"""Tables for people: on a terminal with colours, in a pipe plain, nothing cut."""

import time
from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

_COLOURS = {
    "ACTIVE": "green",
    "healthy": "green",
    "INITIALIZING": "yellow",
    "UNKNOWN": "yellow",
    "degraded": "yellow",
    "FAULT": "red",
    "fault": "red",
    "DOWN": "red",
}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table whose cells are taken literally: no markup of ours can hide in a client's command line."""
    result = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        result.add_row(*(Text(str(cell), style=_COLOURS.get(str(cell), "")) for cell in row))
    return result


def coloured(word: str) -> Text:
    """A state or a health in its colour."""
    return Text(word, style=_COLOURS.get(word, ""))


def age(since: float) -> str:
    """How long ago a UNIX time was, short: 42s, 7m, 3h, 12d."""
    seconds = max(0, int(time.time() - since))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
