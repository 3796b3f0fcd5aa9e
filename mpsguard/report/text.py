"""An incident for a terminal: the verdict, then the timeline, then what to do."""

import textwrap
from collections.abc import Iterator

from mpsguard.report.messages import shortened
from mpsguard.report.report_model import ReportModel, TrackRole

_MARKS = {
    TrackRole.CULPRIT: "►",
    TrackRole.CANDIDATE: "?",
    TrackRole.VICTIM: "·",
    TrackRole.SENSOR: " ",
    TrackRole.GUARD: "✓",
}

_NAME_LENGTH = 40
"""Characters of a process' name in the timeline; the full name is among the facts."""


def render(report: ReportModel, width: int = 100) -> str:
    """Return the report as text, folded between words at ``width`` columns."""
    return "\n".join(_lines(report, width)) + "\n"


def _lines(report: ReportModel, width: int) -> Iterator[str]:
    yield from textwrap.wrap(report.verdict, width)
    if report.reason:
        yield from textwrap.wrap(report.reason, width)
    yield ""
    longest = max(len(name) for name, _ in report.facts)
    for fact, value in (("incident", report.id), *report.facts):
        yield from _folded(f"{fact:{longest}}  ", value, width)
    yield ""
    yield f"{'MS':>12}  {'SEEN BY':11}   WHAT"
    for entry in report.entries:
        off = f" (±{entry.off:.3f} ms)" if entry.off else ""
        # An entry on a sensor's own track has the sensor's name in the column before already.
        name = "" if entry.track == entry.source else f"{shortened(entry.track, _NAME_LENGTH)}: "
        yield from _folded(
            f"{entry.ms:12.3f}  {entry.source:11} {_MARKS[entry.role]} ", f"{name}{entry.text}{off}", width
        )
    if report.left_out:
        yield f"{'':12}  ({report.left_out} pieces of evidence in between were too many to be kept)"
    yield ""
    yield "What to do"
    for step in report.steps:
        yield from _folded("  - ", step, width)


def _folded(beginning: str, text: str, width: int) -> list[str]:
    """Return the lines of ``text`` behind a ``beginning``, which no later line has anything below."""
    below = " " * len(beginning)
    folded = textwrap.wrap(
        text, width, break_on_hyphens=False, break_long_words=False, initial_indent=beginning, subsequent_indent=below
    )
    return folded or [beginning.rstrip()]
