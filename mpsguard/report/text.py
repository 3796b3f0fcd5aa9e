"""An incident for a terminal: the verdict, then the timeline, then what to do."""

import textwrap
from collections.abc import Iterator

from mpsguard.report.report_model import ReportModel, Role

_MARKS = {Role.CULPRIT: "►", Role.CANDIDATE: "?", Role.VICTIM: "·", Role.SENSOR: " ", Role.GUARD: "✓"}

_WHO = 40
"""Characters of a process' name in the timeline; the whole of it is among the facts."""


def render(story: ReportModel, width: int = 100) -> str:
    """Return the whole report, folded between words at ``width`` columns."""
    return "\n".join(_lines(story, width)) + "\n"


def _lines(story: ReportModel, width: int) -> Iterator[str]:
    yield from textwrap.wrap(story.verdict, width)
    if story.reason:
        yield from textwrap.wrap(story.reason, width)
    yield ""
    longest = max(len(name) for name, _ in story.facts)
    for name, value in (("incident", story.id), *story.facts):
        yield from _folded(f"{name:{longest}}  ", value, width)
    yield ""
    yield f"{'MS':>12}  {'SEEN BY':11}   WHAT"
    for moment in story.moments:
        off = f" (±{moment.off:.3f} ms)" if moment.off else ""
        # A sensor's own word has its name in the column before already.
        who = "" if moment.track == moment.source else f"{moment.track[:_WHO]}: "
        yield from _folded(
            f"{moment.ms:12.3f}  {moment.source:11} {_MARKS[moment.role]} ", f"{who}{moment.text}{off}", width
        )
    if story.left_out:
        yield f"{'':12}  ({story.left_out} pieces of evidence in between were too many to be kept)"
    yield ""
    yield "What to do"
    for step in story.steps:
        yield from _folded("  - ", step, width)


def _folded(beginning: str, text: str, width: int) -> list[str]:
    """Return the lines of ``text`` behind a ``beginning``, which no later line has anything below."""
    below = " " * len(beginning)
    folded = textwrap.wrap(
        text, width, break_on_hyphens=False, break_long_words=False, initial_indent=beginning, subsequent_indent=below
    )
    return folded or [beginning.rstrip()]
