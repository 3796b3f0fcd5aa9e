"""The HTML report in a real browser: what is drawn, and what does not run."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

import pytest

from mpsguard.guard.journal.records import RecordedIncident
from mpsguard.guard.report import page
from mpsguard.guard.report.report_model import build_report
from tests.integration.browser import chromium
from tests.integration.browser.chromium import DARK, LIGHT
from tests.unit.guard.report.examples import CASE, EVIDENCE, crowd

pytestmark = [
    pytest.mark.skipif(chromium.CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.slow(seconds=40, reason="starts Chromium"),
]

SCRIPT = "<script>document.title='owned'</script>"
MEASURE = """<script>addEventListener('load', () => {
  const report = document.getElementById('report').contentDocument;
  const box = element => { const b = element.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; };
  const seen = {
    title: report.title,
    scripts: report.querySelectorAll('script, img, [onerror], [onload]').length,
    svg: box(report.querySelector('svg')),
    wider: report.documentElement.scrollWidth - report.documentElement.clientWidth,
    verdict: report.querySelector('.verdict').innerText,
    outside: [...report.querySelectorAll('td')].filter(cell =>
      cell.getBoundingClientRect().right > report.documentElement.clientWidth).length,
    height: report.documentElement.scrollHeight,
    marks: [...report.querySelectorAll('.wide svg .mark')].map(mark => ({
      number: Number(mark.dataset.number), role: mark.getAttribute('class').split(' ')[1], box: box(mark),
      fill: report.defaultView.getComputedStyle(mark).fill })),
  };
  const texts = report.createTreeWalker(report.querySelector('main'), NodeFilter.SHOW_TEXT);
  seen.broken = [];
  for (let text; text = texts.nextNode();)
    for (const word of text.data.matchAll(/\\S+/g)) {
      const range = report.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map(line => Math.round(line.top)));
      if (lines.size > 1 && word[0].length <= 30) seen.broken.push(word[0]);
    }
  document.body.innerHTML = '';
  document.body.append(Object.assign(document.createElement('pre'), {textContent: JSON.stringify(seen)}));
});</script>"""


@pytest.fixture(scope="module")
def report() -> str:
    return page.render(build_report(CASE))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "page.html"


def measured(file: Path, report: str, width: int = 1100) -> dict[str, Any]:
    """Lay the report out in a frame of a page that measures it: the report itself runs nothing."""
    frame = f'<iframe id="report" width="{width}" height="1300" srcdoc="{escape(report)}"></iframe>'
    file.write_text(f"<!DOCTYPE html><body>{frame}{MEASURE}</body>")
    found = re.search(r"<pre>(.*)</pre>", chromium.dom(file), re.DOTALL)
    assert found is not None
    seen: dict[str, Any] = json.loads(found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return seen


def test_the_timeline_is_laid_out_with_a_visible_mark_for_every_moment(file: Path, report: str) -> None:
    seen = measured(file, report)
    left, top, width, height = seen["svg"]
    assert width > 700
    assert height > 200
    assert seen["wider"] == 0, "nothing sticks out of the page"
    assert sorted(mark["number"] for mark in seen["marks"]) == list(range(1, len(EVIDENCE) + 2))
    for mark in seen["marks"]:
        x, y, w, h = mark["box"]
        assert min(w, h) > 5
        assert left <= x
        assert x + w <= left + width
        assert top <= y
        assert y + h <= top + height
    red = {mark["fill"] for mark in seen["marks"] if mark["role"] == "culprit"}
    assert len(red) == 1
    assert red.isdisjoint(mark["fill"] for mark in seen["marks"] if mark["role"] != "culprit")
    assert seen["verdict"].startswith("Process 4242")


@pytest.mark.parametrize("width", [500, 1200])
def test_no_line_breaks_inside_a_word(file: Path, report: str, width: int) -> None:
    seen = measured(file, report, width)
    assert seen["wider"] == 0
    assert seen["broken"] == []


@pytest.mark.parametrize("record", [CASE, crowd()], ids=["few", "26"])
def test_in_a_narrow_window_no_column_is_outside_of_it(file: Path, record: RecordedIncident) -> None:
    seen = measured(file, page.render(build_report(record)), 500)
    assert seen["outside"] == 0
    assert seen["height"] < 4000


def test_a_command_line_with_a_script_is_text(file: Path, report: str) -> None:
    seen = measured(file, report)
    assert seen["title"] == f"Incident {CASE.id}"
    assert seen["scripts"] == 0
    file.write_text(report)
    document = chromium.dom(file)
    assert "<title>owned" not in document
    assert "&lt;script&gt;" in document


def test_even_a_script_that_slipped_through_does_not_run(file: Path, report: str) -> None:
    slipped = report.replace("<main>", f"<main>{SCRIPT}<img src=x onerror=\"document.title='owned'\">")
    file.write_text(slipped)
    assert f"<title>Incident {CASE.id}</title>" in chromium.dom(file)
    # The same without the policy: the test would notice.
    file.write_text(re.sub(r"<meta http-equiv[^>]*>", "", slipped))
    assert "<title>owned</title>" in chromium.dom(file)


@pytest.mark.parametrize(("scheme", "palette"), [(LIGHT, page.LIGHT), (DARK, page.DARK)], ids=["light", "dark"])
def test_it_looks_as_it_should_by_day_and_by_night(
    file: Path, report: str, scheme: int, palette: dict[str, str]
) -> None:
    file.write_text(report)
    picture = chromium.screenshot(file, scheme)
    assert picture.width == 1100
    assert picture.count(palette["paper"]) > 500_000
    # Four diamonds and the bar beside the verdict; two victims' circles; the culprit's row.
    assert picture.count(palette["culprit"]) > 500
    assert picture.count(palette["victim"]) > 200
    assert picture.count(palette["accused"]) > 10_000
