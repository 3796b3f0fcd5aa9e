"""Replies of `nvidia-cuda-mps-control` made comparable: what differs between any two runs is masked, nothing else."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

_TIME: Final = re.compile(r"\b\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d+)?\b")


@dataclass(frozen=True)
class Difference:
    """A command with replies that differ."""

    command: str
    stock: tuple[str, ...]
    """Lines that only the stock daemon answered."""
    ours: tuple[str, ...]
    """Lines that only we answered."""
    lines: int
    """How many lines differ: a changed line counts once, not as one gone and one come."""

    def __str__(self) -> str:
        return f"{self.command!r}: stock {list(self.stock)}, ours {list(self.ours)}"


def mask(line: str, pids: Mapping[int, str]) -> str:
    """The line with known pids replaced by their names and timestamps by a word.

    `ps` pads its columns by the width of the pid, so blanks behind a pid shrink to one.
    """
    line = _TIME.sub("<time>", line)
    for pid, name in pids.items():
        line = re.sub(rf"(?<![\w.]){pid}(?!\w)( ?) *", rf"<{name}>\1", line)
    return line.rstrip()


def differing(command: str, stock: Sequence[str], ours: Sequence[str]) -> Difference | None:
    """Compare two masked replies line by line, in order; None if they are the same."""
    places = [place for place in SequenceMatcher(None, stock, ours, False).get_opcodes() if place[0] != "equal"]
    if not places:
        return None
    return Difference(
        command,
        tuple(line for _, begin, end, _, _ in places for line in stock[begin:end]),
        tuple(line for _, _, _, begin, end in places for line in ours[begin:end]),
        sum(max(end - begin, our_end - our_begin) for _, begin, end, our_begin, our_end in places),
    )
