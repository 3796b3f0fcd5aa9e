"""The plot of a right-sizing in a real browser: alone and in a page, wide and narrow, light and dark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mpsguard.guard.report import page, sizing_plot
from mpsguard.guard.sizing.model import TimeModel
from mpsguard.guard.sizing.procedure import SizingPlan, size
from tests.integration.browser import chromium
from tests.integration.browser.chromium import DARK, LIGHT

pytestmark = [
    pytest.mark.skipif(chromium.CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.slow(seconds=20, reason="starts Chromium"),
]

TITLE = "python infer.py --model a-model-with-a-long-name --batch-size 64 --precision bf16"
MEASURE = """<script>addEventListener('load', () => {
  const svg = document.querySelector('svg'), frame = svg.getBoundingClientRect();
  const outside = [...svg.querySelectorAll('text, .mark, polyline')].filter(part => {
    const box = part.getBoundingClientRect();
    return box.left < frame.left || box.right > frame.right || box.top < frame.top || box.bottom > frame.bottom;
  }).map(part => part.textContent);
  const texts = [...svg.querySelectorAll('text')].map(part => [part.textContent, part.getBoundingClientRect()]);
  const over = texts.flatMap(([text, a], at) => texts.slice(at + 1).filter(([, b]) =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom).map(([other]) => [text, other]));
  document.body.innerHTML = '';
  document.body.append(Object.assign(document.createElement('pre'), {textContent:
    JSON.stringify({outside, over, texts: texts.length, width: frame.width})}));
});</script>"""


def drawn(law: TimeModel, shares: tuple[float, ...] = (10.0, 50.0, 100.0)) -> str:
    return sizing_plot.draw(size(law.seconds, SizingPlan(shares, 0.04, 3)), TITLE)


@pytest.mark.parametrize("width", [320, 1000])
@pytest.mark.parametrize(
    "law",
    [TimeModel(0.1, 0.9), TimeModel(1.0, 0.0), TimeModel(0.0, 2e-5), TimeModel(123.4, 5678.9)],
    ids=["some", "steep", "flat", "long"],
)
def test_no_text_is_cut_or_covers_another(tmp_path: Path, law: TimeModel, width: int) -> None:
    file = tmp_path / "page.html"
    file.write_text(f'<!DOCTYPE html><body><div style="width:{width}px">{drawn(law)}</div>{MEASURE}</body>')
    found = re.search(r"<pre>(.*)</pre>", chromium.dom(file), re.DOTALL)
    assert found is not None
    seen = json.loads(found.group(1))
    assert seen["texts"] > 12
    assert seen["outside"] == []
    assert seen["over"] == []
    assert seen["width"] == pytest.approx(min(width, 720), abs=1)


@pytest.mark.parametrize(("scheme", "palette"), [(LIGHT, page.LIGHT), (DARK, page.DARK)], ids=["light", "dark"])
def test_it_looks_as_it_should_by_day_and_by_night(tmp_path: Path, scheme: int, palette: dict[str, str]) -> None:
    file = tmp_path / "plot.svg"
    file.write_text(drawn(TimeModel(0.1, 0.9)), encoding="utf-8")
    picture = chromium.screenshot(file, scheme, (720, 570))
    assert picture.count(palette["paper"]) > 300_000
    # Two circles, a diamond, a square, and the same in the legend.
    assert picture.count(palette["victim"]) > 300
    assert picture.count(palette["guard"]) > 200
    assert picture.count(palette["sensor"]) > 100
