"""Masks what differs between any two runs, so that their transcripts can be compared."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_AGE: Final = re.compile(r"\b\d+s(?=\s|$)")


def masked(text: str, pids: Iterable[int], directory: str) -> str:
    """Replace pids, ages and this run's private directory in the text; columns stay aligned."""
    for pid in pids:
        text = re.sub(rf"(?<![\w.-]){pid}(?![\w.-])", "PID".ljust(len(str(pid))), text)
    text = _AGE.sub(lambda age: "Ns".ljust(len(age.group())), text.replace(directory, "DIR"))
    return "\n".join(_rules_cut(text.splitlines()))


def _rules_cut(lines: Sequence[str]) -> Iterator[str]:
    """Cut horizontal rules to the masked text's longest line."""
    longest = max((len(line.rstrip()) for line in lines if not _is_rule(line)), default=0)
    for line in lines:
        yield line[:longest] if _is_rule(line) else line


def _is_rule(line: str) -> bool:
    return set(line) == {"─"}
