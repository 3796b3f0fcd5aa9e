"""The plot of a right-sizing: well-formed, self-contained, true to its points, and never a stranger's."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.report import page, sizing_plot
from mpsguard.guard.sizing.model import TimeModel
from mpsguard.guard.sizing.procedure import Sizing, SizingPlan, size

SVG = "{http://www.w3.org/2000/svg}"
ALLOWED = {"svg", "title", "desc", "style", "rect", "text", "line", "polyline", "g", "circle", "path"}
PLAN = SizingPlan((10.0, 50.0, 100.0), 0.04, 3)


def sized(m: float = 0.1, b: float = 0.9) -> Sizing:
    return size(TimeModel(m, b).seconds, PLAN)


def marks(svg: ET.Element) -> list[tuple[float, float]]:
    groups = [group for group in svg.iter(f"{SVG}g") if "mark" in str(group.get("class"))]
    inside = [str(group.get("transform")).removeprefix("translate(").removesuffix(")").split() for group in groups]
    return [(float(x), float(y)) for x, y in inside]


@pytest.mark.parametrize("hostile", ["<script>x()</script>", '"><img src=x onerror=x()>', "]]>", "-->", "&lt;"])
def test_a_strangers_text_opens_no_tag(hostile: str) -> None:
    svg = ET.fromstring(sizing_plot.draw(sized(), hostile))
    assert {each.tag.removeprefix(SVG) for each in svg.iter()} <= ALLOWED
    assert svg.find(f"{SVG}title").text == f"Time by share: {hostile}"  # type: ignore[union-attr]


def test_nothing_is_loaded() -> None:
    drawn = sizing_plot.draw(sized(), "program")
    assert "url(" not in drawn
    assert "href" not in drawn
    assert drawn.count("http") == 1  # the name space


def test_it_has_the_reports_colours_for_light_and_dark() -> None:
    drawn = sizing_plot.draw(sized(), "program")
    for palette in (page.LIGHT, page.DARK):
        assert all(f"--{name}:{palette[name]}" in drawn for name in ("paper", "ink", "guard", "victim"))


@given(st.floats(1e-6, 1e4), st.floats(0, 1e4))
def test_every_point_is_inside_and_in_order(m: float, b: float) -> None:
    sizing = sized(m, b)
    found = marks(ET.fromstring(sizing_plot.draw(sizing, "program")))
    assert len(found) == len(sizing.points)
    assert all(58 <= x <= 462 and 76 <= y <= 304 for x, y in found)
    assert [x for x, _ in found] == sorted(x for x, _ in found)
    # A time that falls with the share goes down on paper.
    assert [y for _, y in found] == sorted(y for _, y in found)


def test_a_share_that_was_not_found_is_not_drawn() -> None:
    sizing = size(lambda share: 1 + share / 100, PLAN)
    drawn = sizing_plot.draw(sizing, "program")
    assert "No share was found." in drawn
    assert 'class="chosen"' not in drawn
    assert '<text class="chosen"' in sizing_plot.draw(sized(), "program")
