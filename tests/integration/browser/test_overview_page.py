"""The guard's page in a real browser: within its width, legible by day and night, and loaded again without a script."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mpsguard.guard.report import overview_page, page
from tests.harness.waiting import wait_for
from tests.integration.browser import chromium
from tests.integration.browser.chromium import DARK, LIGHT
from tests.unit.guard.report.overviews import EXAMPLE

pytestmark = [
    pytest.mark.skipif(chromium.CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.slow(seconds=15, reason="starts Chromium"),
]

REFRESH = f'content="{overview_page.REFRESH_S}"'
MEASURE = """<script>addEventListener('load', () => {
  const page = document.getElementById('page').contentDocument, root = page.documentElement;
  const labels = [...page.querySelectorAll('td')].filter(cell =>
    page.defaultView.getComputedStyle(cell, '::before').content !== 'none' && cell.offsetHeight > 0);
  const seen = {
    wider: root.scrollWidth - root.clientWidth,
    heads: [...page.querySelectorAll('th')].filter(head => head.offsetHeight > 0).length,
    labels: labels.length,
    sensors: Math.max(...[...page.querySelectorAll('.lines tr')].map(row => row.offsetHeight)),
    cut: [...page.querySelectorAll('td')].filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell =>
      cell.textContent),
  };
  document.body.innerHTML = '';
  document.body.append(Object.assign(document.createElement('pre'), {textContent: JSON.stringify(seen)}));
});</script>"""


def shown(*, refreshing: bool = False) -> str:
    return overview_page.render(EXAMPLE, everything=True, refreshing=refreshing)


@pytest.mark.parametrize(("width", "is_wide"), [(500, False), (1200, True)])
def test_nothing_is_cut_at_any_width_and_every_value_has_its_name(tmp_path: Path, width: int, is_wide: bool) -> None:
    frame = f'<iframe id="page" width="{width}" height="1300" srcdoc="{escape(shown())}"></iframe>'
    file = tmp_path / "page.html"
    file.write_text(f"<!DOCTYPE html><body>{frame}{MEASURE}</body>")
    found = re.search(r"<pre>(.*)</pre>", chromium.dom(file), re.DOTALL)
    assert found is not None
    seen: dict[str, Any] = json.loads(found.group(1))
    assert (seen["wider"], seen["cut"]) == (0, [])
    assert (seen["heads"] > 20, seen["labels"] > 60) == (is_wide, not is_wide)
    assert seen["sensors"] < 70


@pytest.mark.parametrize(("scheme", "palette"), [(LIGHT, page.LIGHT), (DARK, page.DARK)], ids=["light", "dark"])
def test_it_looks_as_it_should_by_day_and_by_night(tmp_path: Path, scheme: int, palette: dict[str, str]) -> None:
    file = tmp_path / "page.html"
    file.write_text(shown())
    picture = chromium.screenshot(file, scheme, (800, 500))
    assert picture.count(palette["paper"]) > 300_000
    # The bar beside the guard's health, and the lane that starts; the lane that serves.
    assert picture.count(palette["candidate"]) > 200
    assert picture.count(palette["guard"]) > 30


class Served(ThreadingHTTPServer):
    """Serves the page as the guard does, and counts."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked: list[str] = []


class _Answer(BaseHTTPRequestHandler):
    server: Served

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body = shown(refreshing=True).replace(REFRESH, 'content="1"').encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", overview_page.POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """Be silent."""


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_it_loads_itself_again_and_nothing_else(served: Served) -> None:
    with chromium.browsing(f"http://127.0.0.1:{served.server_port}/"):
        wait_for("the page to be loaded again", lambda: served.asked.count("/") >= 2)
    assert set(served.asked) <= {"/", "/favicon.ico"}
