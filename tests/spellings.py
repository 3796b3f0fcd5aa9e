"""Values as people spell them, and what the vendor's control daemon shows then: measured, in spellings.tsv."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_suffix(".tsv")


class Spelling(NamedTuple):
    """One row of the table."""

    setting: str
    """Its vendor's name without ``set_default_``."""
    device: str
    """Of a limit of memory; else empty."""
    asked: str
    shown: str | None
    """What the query shows then, empty where there is nothing to show; None: the value was refused."""

    @property
    def arguments(self) -> str:
        """What stands behind the command's name."""
        return f"{self.device} {self.asked}" if self.device else self.asked


def measured() -> list[Spelling]:
    """Return the rows of the table."""
    rows = []
    for line in TABLE.read_text("ascii").splitlines():
        if line.startswith("#"):
            continue
        name, asked, shown = line.split("\t")
        setting, _, device = name.partition(" ")
        rows.append(Spelling(setting, plain(device), plain(asked), None if shown == "-" else shown))
    return rows


def plain(text: str) -> str:
    """Return what a Python text without its quotes stands for; lone bytes as surrogates."""
    return text.encode("ascii").decode("unicode_escape")
