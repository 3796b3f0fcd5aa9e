"""An incident for a terminal: the verdict, then the timeline, then what to do.

With many clients it is short: processes are counted and named by their pids, and of many moments of a kind the first is
told. The whole has them all.
"""

import textwrap
from collections.abc import Iterator

from mpsguard.guard.report.messages import shortened
from mpsguard.guard.report.report_model import Moment, ProcessList, ReportModel, TrackRole, condensed

_MARKS = {
    TrackRole.CULPRIT: "►",
    TrackRole.CANDIDATE: "?",
    TrackRole.VICTIM: "·",
    TrackRole.SURVIVOR: "+",
    TrackRole.SENSOR: " ",
    TrackRole.GUARD: "✓",
}

_NAME_LENGTH = 40
"""Characters of a process' name in the timeline; the full name is among the facts."""


_MOST_PIDS = 60
"""Pids that the short form names: an MPS server's clients."""


def render(report: ReportModel, width: int = 100, *, whole: bool = False) -> str:
    """Return the report as text, folded between words at ``width`` columns."""
    return "\n".join(_lines(report, width, whole)) + "\n"


def _lines(report: ReportModel, width: int, whole: bool) -> Iterator[str]:
    yield from textwrap.wrap(report.verdict, width)
    if report.reason:
        yield from textwrap.wrap(report.reason, width)
    yield ""
    longest = max(len(name) for name, _ in report.facts)
    for fact, value in (("incident", report.id), *report.facts):
        listed = report.lists.get(fact)
        text = value if listed is None else "; ".join(listed.names) if whole else f"{value}: {_pids(listed)}"
        yield from _folded(f"{fact:{longest}}  ", text, width)
    yield ""
    yield f"{'MS':>12}  {'SEEN BY':11}   WHAT"
    moments = [Moment(entry) for entry in report.entries] if whole else condensed(report.entries)
    for moment in moments:
        entry = moment.entry
        off = f" (±{entry.off:.3f} ms)" if entry.off else ""
        # An entry on a sensor's own track has the sensor's name in the column before already.
        name = "" if entry.track == entry.source else f"{shortened(entry.track, _NAME_LENGTH)}: "
        yield from _folded(
            f"{entry.ms:12.3f}  {entry.source:11} {_MARKS[entry.role]} ",
            f"{name}{entry.text}{off}{_more(moment)}",
            width,
        )
    if report.left_out:
        yield f"{'':12}  ({report.left_out} pieces of evidence in between were too many to be kept)"
    yield ""
    yield "What to do"
    for step in report.steps:
        yield from _folded("  - ", step, width)
    if not whole and (report.lists or len(moments) < len(report.entries)):
        yield ""
        yield from textwrap.wrap(f"All of it: mpsguard-ctl incident show {report.id} --all", width)


def _pids(listed: ProcessList) -> str:
    rest = len(listed.pids) - _MOST_PIDS
    return ", ".join(map(str, listed.pids[:_MOST_PIDS])) + (f" and {rest} more" if rest > 0 else "")


def _more(moment: Moment) -> str:
    return f" (and {moment.more} more like it until {moment.last_ms:.3f})" if moment.more else ""


def _folded(beginning: str, text: str, width: int) -> list[str]:
    """Return the lines of ``text`` behind a ``beginning``, which no later line has anything below."""
    below = " " * len(beginning)
    folded = textwrap.wrap(
        text, width, break_on_hyphens=False, break_long_words=False, initial_indent=beginning, subsequent_indent=below
    )
    return folded or [beginning.rstrip()]
