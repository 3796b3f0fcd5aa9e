"""The timeline as an SVG: one row for each process and sensor, milliseconds to the right."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

import msgspec

from mpsguard.guard.report.messages import shortened
from mpsguard.guard.report.report_model import ReportModel, TimelineEntry, TrackRole

_SVG: Final = 'xmlns="http://www.w3.org/2000/svg" role="img"'
_TOP: Final = 34


class TimelineLayout(msgspec.Struct, frozen=True):
    """Positions and sizes of the drawing's parts, in pixels."""

    name: str
    width: int
    plot_left: int
    plot_right: int
    before: int
    """Where marks of entries before the incident's beginning stand; the table says how long before they were."""
    row: int
    """Height of a row."""
    label_length: int
    labels_above: bool
    """Whether a row's name stands above its marks, not beside them."""
    legend_columns: int

    def mark_y(self, row: int) -> float:
        """Return the vertical position of a row's marks."""
        return _TOP + row * self.row + (self.row - 14 if self.labels_above else self.row / 2 + 3)

    def label_y(self, row: int) -> float:
        """Return the base line of a row's name."""
        return _TOP + row * self.row + (15 if self.labels_above else self.row / 2 + 4.5)


WIDE: Final = TimelineLayout("wide", 960, 312, 936, 268, 36, 30, labels_above=False, legend_columns=5)
NARROW: Final = TimelineLayout("narrow", 460, 60, 444, 26, 52, 56, labels_above=True, legend_columns=2)
"""For screens and windows of less than 46 rem."""

_LINEAR_UP_TO: Final = 50.0
"""Milliseconds. A longer incident is drawn on a logarithmic axis: on a linear one its beginning would be one point."""
_MOST_TRACKS: Final = 16
_MOST_OF_A_ROLE: Final = 6
"""Rows of a role, where there are more than `_MOST_TRACKS`: many victims leave room for the sensors."""
_APART: Final = 17
"""Least distance of two legible numbers, in pixels."""
_OTHERS: Final = "all others"

# Shape as well as colour tells the roles apart: some readers do not see the colours, and paper may have none.
_SHAPES: Final = {
    TrackRole.CULPRIT: '<path d="M0-9 9 0 0 9-9 0Z"/>',
    TrackRole.CANDIDATE: '<path d="M0-8 8 6-8 6Z"/>',
    TrackRole.VICTIM: '<circle r="6.5"/>',
    TrackRole.SURVIVOR: '<path d="M-6.5 0A6.5 6.5 0 1 0 6.5 0A6.5 6.5 0 1 0-6.5 0M-3 0A3 3 0 1 1 3 0A3 3 0 1 1-3 0Z"/>',
    TrackRole.SENSOR: '<rect x="-5.5" y="-5.5" width="11" height="11" rx="1.5"/>',
    TrackRole.GUARD: '<path d="M-7-4H7V4H-7Z"/>',
}
_LEGEND: Final = {
    TrackRole.CULPRIT: "culprit",
    TrackRole.CANDIDATE: "may be the culprit",
    TrackRole.VICTIM: "victim",
    TrackRole.SURVIVOR: "survived",
    TrackRole.SENSOR: "sensor, or another process",
    TrackRole.GUARD: "the guard's own doing",
}


class _Axis:
    """The mapping of milliseconds to pixels."""

    def __init__(self, entries: tuple[TimelineEntry, ...], layout: TimelineLayout) -> None:
        self._layout = layout
        self.span = max([1.0, *(entry.ms for entry in entries)])
        self.logarithmic = self.span > _LINEAR_UP_TO

    def x(self, ms: float) -> float:
        """Return the position of ``ms``; all times before the beginning share one."""
        layout = self._layout
        if ms < 0:
            return layout.before
        part = math.log1p(ms) / math.log1p(self.span) if self.logarithmic else ms / self.span
        return round(layout.plot_left + part * (layout.plot_right - layout.plot_left), 1)

    def ticks(self) -> list[float]:
        """Return the round numbers within the span, in milliseconds."""
        if self.logarithmic:
            return [0.0, *(10.0**power for power in range(int(math.log10(self.span)) + 1))]
        step = 10 ** math.floor(math.log10(self.span))
        step = next(step * part for part in (0.1, 0.2, 0.5, 1) if self.span / (step * part) <= 8)
        return [step * index for index in range(int(self.span / step + 1e-9) + 1)]


def draw(report: ReportModel, layout: TimelineLayout = WIDE) -> str:
    """Return an ``<svg>`` element, which takes its colours from the page's style sheet."""
    shown = _shown(report.tracks)
    rows = {track: row for row, (track, _) in enumerate(shown)}
    titles = [*shown, (_OTHERS, TrackRole.SENSOR)] if len(report.tracks) > len(shown) else list(shown)
    roles = {role for _, role in titles}
    legend_rows = -(-len(roles) // layout.legend_columns)
    bottom = _TOP + layout.row * len(titles)
    height = bottom + 14 + 20 * legend_rows
    axis = _Axis(report.entries, layout)
    scale = "logarithmic" if axis.logarithmic else "linear"
    accused = [track for track, role in shown if role is TrackRole.CULPRIT]
    described = f"{len(report.entries)} moments on {len(titles)} rows over {axis.span:.3f} ms, {scale} axis. " + (
        f"The culprit's row is {accused[0]}." if accused else "No row is marked as the culprit's."
    )
    name = layout.name
    parts = [
        f'<svg {_SVG} aria-labelledby="title-{name} desc-{name}" viewBox="0 0 {layout.width} {height}">',
        f'<title id="title-{name}">Timeline of incident {escape(report.id)}</title>',
        f'<desc id="desc-{name}">{escape(described)} The table below says the same in words.</desc>',
        *_rows(titles, layout),
        *_ticks(axis, bottom, layout),
        *_marks(report.entries, rows, axis, layout),
        *_legend(roles, bottom + 24, layout),
        "</svg>",
    ]
    return "\n".join(parts)


def _shown(tracks: Sequence[tuple[str, TrackRole]]) -> list[tuple[str, TrackRole]]:
    """Return the tracks that have a row of their own."""
    if len(tracks) <= _MOST_TRACKS:
        return list(tracks)
    of_a_role = Counter[TrackRole]()
    shown = []
    for track, role in tracks:
        of_a_role[role] += 1
        if of_a_role[role] <= _MOST_OF_A_ROLE:
            shown.append((track, role))
    return shown


def _rows(titles: list[tuple[str, TrackRole]], layout: TimelineLayout) -> Iterator[str]:
    for row, (track, role) in enumerate(titles):
        kind = role.value if role is TrackRole.CULPRIT else ("even", "odd")[row % 2]
        top = _TOP + row * layout.row
        yield f'<rect class="row {kind}" x="0" y="{top}" width="{layout.width}" height="{layout.row}"/>'
        yield (
            f'<text class="track {role.value}" x="10" y="{layout.label_y(row)}">'
            f"{escape(shortened(track, layout.label_length))}"
            f"<title>{escape(track)} ({role.value})</title></text>"
        )


def _ticks(axis: _Axis, bottom: float, layout: TimelineLayout) -> Iterator[str]:
    scale = ", logarithmic" if axis.logarithmic else ""
    if not layout.labels_above:
        yield f'<text class="tick" x="10" y="20">milliseconds{scale}</text>'
    yield f'<text class="tick" x="{layout.before}" y="20" text-anchor="middle">before</text>'
    for ms in axis.ticks():
        x = axis.x(ms)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{bottom}"/>'
        yield f'<text class="tick" x="{x}" y="20" text-anchor="middle">{ms:g}</text>'


def _marks(
    entries: tuple[TimelineEntry, ...], rows: dict[str, int], axis: _Axis, layout: TimelineLayout
) -> Iterator[str]:
    last: dict[int, float] = {}
    for entry in entries:
        row = rows.get(entry.track, len(rows))
        x, y = axis.x(entry.ms), layout.mark_y(row)
        if entry.off and entry.ms >= 0:
            left, right = (
                axis.x(max(0.0, entry.ms - entry.off)),
                min(axis.x(entry.ms + entry.off), layout.plot_right),
            )
            yield f'<line class="whisker" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
        label = ""
        if x - last.get(row, -math.inf) >= _APART:
            last[row] = x
            label = f'<text y="-10" text-anchor="middle">{entry.number}</text>'
        yield (
            f'<g class="mark {entry.role.value}" data-number="{entry.number}" transform="translate({x} {y})">'
            f"<title>{entry.ms:.3f} ms: {escape(entry.track)}: {escape(entry.text)}</title>"
            f"{_SHAPES[entry.role]}{label}</g>"
        )


def _legend(roles: set[TrackRole], top: float, layout: TimelineLayout) -> Iterator[str]:
    x, y, column = 16.0, top, 0
    for role in TrackRole:
        if role not in roles:
            continue
        if column == layout.legend_columns:
            x, y, column = 16.0, y + 20, 0
        yield f'<g class="key {role.value}" transform="translate({x} {y - 5})">{_SHAPES[role]}</g>'
        yield f'<text class="tick" x="{x + 15}" y="{y}">{_LEGEND[role]}</text>'
        x += 40 + 7.0 * len(_LEGEND[role])
        column += 1
