"""Time by share as an SVG file of its own: measured points, the model, the slip, the chosen share.

It has the report's colours, for light and dark, and needs neither script nor font nor network.
"""

import math
from collections.abc import Iterator
from html import escape
from typing import Final

from mpsguard.guard.report.messages import shortened
from mpsguard.guard.report.page import DARK, LIGHT
from mpsguard.guard.sizing.procedure import Point, Purpose, Sizing

_SVG: Final = 'xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc"'
_WIDTH: Final = 480
_HEIGHT: Final = 412
_LEFT: Final = 58
_RIGHT: Final = 462
_TOP: Final = 76
_BOTTOM: Final = 304
_STEPS: Final = 96
"""Straight pieces of the curve; each is less than five pixels wide."""
_HEADROOM: Final = 1.08
"""The longest time is that much below the upper edge."""
_TITLE_LENGTH: Final = 54
"""Characters that fit above the plot."""

# Shape as well as colour tells them apart, as in the report's timeline.
_SHAPES: Final = {
    Purpose.FIT: '<circle r="6"/>',
    Purpose.CHECK: '<rect x="-5.5" y="-5.5" width="11" height="11" rx="1.5"/>',
    Purpose.TRIED: '<path d="M0-8 8 6-8 6Z"/>',
    Purpose.KEPT: '<path d="M0 8 8-6-8-6Z"/>',
    Purpose.CHOSEN: '<path d="M0-9 9 0 0 9-9 0Z"/>',
}
_LEGEND: Final = {
    Purpose.FIT: "measured, for the fit",
    Purpose.CHECK: "measured, to check it",
    Purpose.TRIED: "tried, costs too much",
    Purpose.KEPT: "kept to it, a smaller one did too",
    Purpose.CHOSEN: "the least share",
}
_COLOURS: Final = {
    Purpose.FIT: "victim",
    Purpose.CHECK: "sensor",
    Purpose.TRIED: "candidate",
    Purpose.KEPT: "quiet",
    Purpose.CHOSEN: "guard",
}
"""Names in the report's palettes."""


def _variables(palette: dict[str, str]) -> str:
    return ";".join(f"--{name}:{palette[name]}" for name in ("paper", "ink", "quiet", "line", *_COLOURS.values()))


_STYLE: Final = (
    f"svg{{color-scheme:light dark;{_variables(LIGHT)};max-width:45rem;background:var(--paper)}}\n"
    f"@media (prefers-color-scheme:dark){{svg{{{_variables(DARK)}}}}}\n"
    'text{font:13px system-ui,"DejaVu Sans",sans-serif;fill:var(--ink)}\n'
    "text.title{font-weight:600} text.tick{fill:var(--quiet);font-size:12px}\n"
    ".paper{fill:var(--paper)} .grid{stroke:var(--line)} .whisker{stroke:var(--quiet);stroke-width:2}\n"
    ".curve{fill:none;stroke:var(--ink);stroke-width:1.5} .slip{stroke:var(--guard);stroke-dasharray:5 4}\n"
    + " ".join(f".{purpose.value}{{fill:var(--{colour})}}" for purpose, colour in _COLOURS.items())
)


class _Scale:
    """The mapping of shares and times to pixels."""

    def __init__(self, sizing: Sizing) -> None:
        longest = max(max(*point.times, point.predicted) for point in sizing.points)
        self.name, self.unit = next(
            ((name, size) for name, size in (("s", 1.0), ("ms", 1e-3)) if longest >= size), ("us", 1e-6)
        )
        self.longest = longest * _HEADROOM

    def x(self, share: float) -> float:
        """Return the position of a share in percent."""
        return round(_LEFT + share / 100 * (_RIGHT - _LEFT), 1)

    def y(self, seconds: float) -> float:
        """Return the position of a time."""
        return round(_BOTTOM - seconds / self.longest * (_BOTTOM - _TOP), 1)

    def ticks(self) -> list[float]:
        """Return the round times within the plot, in its unit."""
        longest = self.longest / self.unit
        power = 10.0 ** math.floor(math.log10(longest))
        step = next(power * part for part in (0.1, 0.2, 0.5, 1, 2) if longest / (power * part) <= 6)
        return [step * number for number in range(int(longest / step) + 1)]


def draw(sizing: Sizing, title: str) -> str:
    """Return the file; ``title`` is untrusted, and cut."""
    scale = _Scale(sizing)
    measured = ", ".join(
        f"{_number(point.seconds, scale)} {scale.name} at {point.share:g} %" for point in sizing.points
    )
    chosen = f"{sizing.share:g} % is the least share." if sizing.share is not None else "No share was found."
    parts = [
        f'<svg {_SVG} viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f'<title id="title">Time by share: {escape(title)}</title>',
        f'<desc id="desc">Measured: {measured}. {chosen}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="14" y="24">{escape(shortened(title, _TITLE_LENGTH))}</text>',
        f'<text class="tick" x="14" y="46">{scale.name} for a unit of work</text>',
        *_grid(scale),
        *_model(sizing, scale),
        *(_mark(point, _purpose(point, sizing), scale) for point in sizing.points),
        *_legend(sizing),
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def _number(seconds: float, scale: _Scale) -> str:
    return f"{seconds / scale.unit:.4g}"


def _grid(scale: _Scale) -> Iterator[str]:
    for ticked in scale.ticks():
        y = scale.y(ticked * scale.unit)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{ticked:g}</text>'
    for share in range(0, 101, 20):
        x = scale.x(share)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_BOTTOM}" y2="{_BOTTOM + 5}"/>'
        yield f'<text class="tick" x="{x}" y="{_BOTTOM + 20}" text-anchor="middle">{share}</text>'
    yield f'<text class="tick" x="{_RIGHT}" y="{_BOTTOM + 38}" text-anchor="end">% of the SMs</text>'


def _model(sizing: Sizing, scale: _Scale) -> Iterator[str]:
    least, most = sizing.plan.shares[0], sizing.plan.reference
    shares = [least * (most / least) ** (number / _STEPS) for number in range(_STEPS + 1)]
    path = " ".join(f"{scale.x(share)},{scale.y(sizing.model.seconds(share))}" for share in shares)
    allowed = scale.y(sizing.model.seconds(most) * (1 + sizing.plan.slip))
    yield f'<line class="slip" x1="{_LEFT}" x2="{_RIGHT}" y1="{allowed}" y2="{allowed}"/>'
    yield f'<polyline class="curve" points="{path}"/>'
    if sizing.share is not None:
        x = scale.x(sizing.share)
        yield f'<line class="slip" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_BOTTOM}"/>'
        yield f'<text class="chosen" x="{x}" y="{_TOP - 6}" text-anchor="middle">{sizing.share:g} %</text>'


def _purpose(point: Point, sizing: Sizing) -> Purpose:
    return Purpose.CHOSEN if point.share == sizing.share else point.purpose


def _mark(point: Point, purpose: Purpose, scale: _Scale) -> str:
    x = scale.x(point.share)
    shortest, longest = scale.y(min(point.times)), scale.y(max(point.times))
    said = (
        f"{point.share:g} %: {_number(point.seconds, scale)} {scale.name} measured, "
        f"{_number(point.predicted, scale)} predicted ({100 * point.error:+.1f} %)"
    )
    return (
        f'<line class="whisker" x1="{x}" x2="{x}" y1="{shortest}" y2="{longest}"/>'
        f'<g class="mark {purpose.value}" transform="translate({x} {scale.y(point.seconds)})">'
        f"<title>{said}</title>{_SHAPES[purpose]}</g>"
    )


def _legend(sizing: Sizing) -> Iterator[str]:
    purposes = {_purpose(point, sizing) for point in sizing.points}
    keys = [(purpose.value, _SHAPES[purpose], _LEGEND[purpose]) for purpose in Purpose if purpose in purposes]
    slip = f"{100 * sizing.plan.slip:g} % slower than at {sizing.plan.reference:g} %"
    for number, (name, shape, text) in enumerate([*keys, ("limit", '<line class="slip" x1="-9" x2="9"/>', slip)]):
        x, y = _LEFT + 210 * (number % 2), _BOTTOM + 58 + 20 * (number // 2)
        yield f'<g class="{name}" transform="translate({x} {y - 5})">{shape}</g>'
        yield f'<text class="tick" x="{x + 15}" y="{y}">{text}</text>'
