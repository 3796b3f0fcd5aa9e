"""Findings as a table for the terminal, with their notes."""

from collections.abc import Iterator, Sequence

from tests.bench.core.finding import Finding
from tests.bench.results.table import HEADINGS, cells


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """The table line by line, each row's note below it."""
    rows = [cells(finding.row) for finding in findings]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    yield _line(HEADINGS, widths)
    yield _line(["-" * width for width in widths], widths)
    for finding, texts in zip(findings, rows, strict=True):
        yield _line(texts, widths)
        if finding.note:
            yield f"    {finding.note}"


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{text:{width}}" for text, width in zip(texts, widths, strict=True)).rstrip()
