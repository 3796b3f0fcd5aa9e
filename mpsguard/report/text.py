"""An incident for a terminal: the verdict, then the timeline, then what to do."""

import textwrap
from collections.abc import Iterator

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
    """Return the report as text; paragraphs are folded at ``width`` columns, the timeline's lines are not."""
    return "\n".join(_lines(report, width)) + "\n"


def _lines(report: ReportModel, width: int) -> Iterator[str]:
    yield from textwrap.wrap(report.verdict, width)
    if report.reason:
        yield from textwrap.wrap(report.reason, width)
    yield ""
    longest = max(len(name) for name, _ in report.facts)
    for name, value in (("incident", report.id), *report.facts):
        yield f"{name:{longest}}  {value}"
    yield ""
    yield f"{'MS':>12}  {'SEEN BY':11}   WHAT"
    for entry in report.entries:
        off = f" (±{entry.off:.3f} ms)" if entry.off else ""
        # An entry on a sensor's own track has the sensor's name in the column before already.
        name = "" if entry.track == entry.source else f"{entry.track[:_NAME_LENGTH]}: "
        yield f"{entry.ms:12.3f}  {entry.source:11} {_MARKS[entry.role]} {name}{entry.text}{off}"
    if report.left_out:
        yield f"{'':12}  ({report.left_out} pieces of evidence in between were too many to be kept)"
    yield ""
    yield "What to do"
    for step in report.steps:
        yield from textwrap.wrap(step, width, break_on_hyphens=False, initial_indent="  - ", subsequent_indent="    ")
