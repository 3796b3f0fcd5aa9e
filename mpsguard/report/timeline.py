"""The timeline as an SVG: one row for each process and sensor, milliseconds to the right."""

import math
from collections.abc import Iterator
from html import escape
from typing import Final

from mpsguard.report.story import Moment, Role, Story

_SVG: Final = 'xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="timeline-title timeline-desc"'
_WIDTH: Final = 960
_PLOT_LEFT: Final = 312
_PLOT_RIGHT: Final = 936
_BEFORE: Final = 268
"""Where marks stand of what happened before the incident began: how long before is in the table."""
_TOP: Final = 34
_ROW: Final = 36
_LINEAR_UP_TO: Final = 50.0
"""Milliseconds: a longer incident is drawn on a logarithmic axis, or its beginning would be one point."""
_MOST_TRACKS: Final = 24
_LABEL_LENGTH: Final = 30
_APART: Final = 17
"""Pixels between two numbers that can both be read."""
_OTHERS: Final = "all others"

# Shape as well as colour tells the roles apart: not everybody sees the colours, and paper has none.
_SHAPES: Final = {
    Role.CULPRIT: '<path d="M0-9 9 0 0 9-9 0Z"/>',
    Role.CANDIDATE: '<path d="M0-8 8 6-8 6Z"/>',
    Role.VICTIM: '<circle r="6.5"/>',
    Role.SENSOR: '<rect x="-5.5" y="-5.5" width="11" height="11" rx="1.5"/>',
    Role.GUARD: '<path d="M-7-4H7V4H-7Z"/>',
}
_LEGEND: Final = {
    Role.CULPRIT: "culprit",
    Role.CANDIDATE: "may be the culprit",
    Role.VICTIM: "victim",
    Role.SENSOR: "sensor, or another process",
    Role.GUARD: "the guard's own doing",
}


class _Axis:
    """Milliseconds to pixels."""

    def __init__(self, moments: tuple[Moment, ...]) -> None:
        self.span = max([1.0, *(moment.ms for moment in moments)])
        self.logarithmic = self.span > _LINEAR_UP_TO

    def x(self, ms: float) -> float:
        """Where ``ms`` is; before the beginning there is one place only."""
        if ms < 0:
            return _BEFORE
        part = math.log1p(ms) / math.log1p(self.span) if self.logarithmic else ms / self.span
        return round(_PLOT_LEFT + part * (_PLOT_RIGHT - _PLOT_LEFT), 1)

    def ticks(self) -> list[float]:
        """Round numbers within the span."""
        if self.logarithmic:
            return [0.0, *(10.0**power for power in range(int(math.log10(self.span)) + 1))]
        step = 10 ** math.floor(math.log10(self.span))
        step = next(step * part for part in (0.1, 0.2, 0.5, 1) if self.span / (step * part) <= 8)
        return [step * index for index in range(int(self.span / step + 1e-9) + 1)]


def draw(story: Story) -> str:
    """An ``<svg>`` element that needs the page's style sheet for its colours and nothing else."""
    shown = story.tracks[:_MOST_TRACKS]
    rows = {track: row for row, (track, _) in enumerate(shown)}
    titles = [*shown, (_OTHERS, Role.SENSOR)] if len(story.tracks) > len(shown) else list(shown)
    height = _TOP + _ROW * len(titles) + 34
    axis = _Axis(story.moments)
    scale = "logarithmic" if axis.logarithmic else "linear"
    accused = [track for track, role in shown if role is Role.CULPRIT]
    described = f"{len(story.moments)} moments on {len(titles)} rows over {axis.span:.3f} ms, {scale} axis. " + (
        f"The culprit's row is {accused[0]}." if accused else "No row is marked as the culprit's."
    )
    parts = [
        f'<svg {_SVG} viewBox="0 0 {_WIDTH} {height}">',
        f'<title id="timeline-title">Timeline of incident {escape(story.id)}</title>',
        f'<desc id="timeline-desc">{escape(described)} The table below says the same in words.</desc>',
        *_rows(titles),
        *_ticks(axis, _TOP + _ROW * len(titles)),
        *_marks(story.moments, rows, axis),
        *_legend({role for _, role in titles}, height - 10),
        "</svg>",
    ]
    return "\n".join(parts)


def _rows(titles: list[tuple[str, Role]]) -> Iterator[str]:
    for row, (track, role) in enumerate(titles):
        top = _TOP + row * _ROW
        kind = role.value if role is Role.CULPRIT else ("even", "odd")[row % 2]
        yield f'<rect class="row {kind}" x="0" y="{top}" width="{_WIDTH}" height="{_ROW}"/>'
        cut = track if len(track) <= _LABEL_LENGTH else track[: _LABEL_LENGTH - 1] + "…"
        yield (
            f'<text class="track {role.value}" x="10" y="{top + _ROW / 2 + 4.5}">{escape(cut)}'
            f"<title>{escape(track)} ({role.value})</title></text>"
        )


def _ticks(axis: _Axis, bottom: float) -> Iterator[str]:
    scale = ", logarithmic" if axis.logarithmic else ""
    yield f'<text class="tick" x="10" y="20">milliseconds{scale}</text>'
    yield f'<text class="tick" x="{_BEFORE}" y="20" text-anchor="middle">before</text>'
    for ms in axis.ticks():
        x = axis.x(ms)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{bottom}"/>'
        yield f'<text class="tick" x="{x}" y="20" text-anchor="middle">{ms:g}</text>'


def _marks(moments: tuple[Moment, ...], rows: dict[str, int], axis: _Axis) -> Iterator[str]:
    last: dict[int, float] = {}
    for moment in moments:
        row = rows.get(moment.track, len(rows))
        x, y = axis.x(moment.ms), _TOP + row * _ROW + _ROW / 2 + 3
        if moment.off and moment.ms >= 0:
            left, right = axis.x(max(0.0, moment.ms - moment.off)), min(axis.x(moment.ms + moment.off), _PLOT_RIGHT)
            yield f'<line class="whisker" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
        label = ""
        if x - last.get(row, -math.inf) >= _APART:
            last[row] = x
            label = f'<text y="-10" text-anchor="middle">{moment.number}</text>'
        yield (
            f'<g class="mark {moment.role.value}" data-number="{moment.number}" transform="translate({x} {y})">'
            f"<title>{moment.ms:.3f} ms: {escape(moment.track)}: {escape(moment.text)}</title>"
            f"{_SHAPES[moment.role]}{label}</g>"
        )


def _legend(roles: set[Role], y: float) -> Iterator[str]:
    x = 16.0
    for role in Role:
        if role in roles:
            yield f'<g class="key {role.value}" transform="translate({x} {y - 5})">{_SHAPES[role]}</g>'
            yield f'<text class="tick" x="{x + 15}" y="{y}">{_LEGEND[role]}</text>'
            x += 40 + 7.0 * len(_LEGEND[role])
