"""The HTML file: well-formed, self-contained, readable, and never a stranger's."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mpsguard.guard.evidence import Lost, Source, Xid
from mpsguard.guard.report import page, timeline
from mpsguard.guard.report.report_model import build_report
from mpsguard.linux.identity import ProcessKey
from tests.unit.guard.report.examples import CASE, CULPRIT, EVIDENCE, case, client, seen

SVG = "{http://www.w3.org/2000/svg}"
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "figure", "footer", "div", "ol", "li"),
    *("svg", "desc", "rect", "text", "line", "g", "path", "circle"),
    *(
        "dl",
        "dt",
        "dd",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "abbr",
        "code",
        "span",
        "details",
        "summary",
        "ul",
    ),
}


class Tags(HTMLParser):
    def __init__(self, document: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def drawn(**changes: object) -> ET.Element:
    return ET.fromstring(timeline.draw(build_report(case(**changes))))


def marks(svg: ET.Element) -> dict[int, ET.Element]:
    found = [group for group in svg.iter(f"{SVG}g") if "mark" in str(group.get("class"))]
    return {int(str(group.get("data-number"))): group for group in found}


def x_of(mark: ET.Element) -> float:
    return float(str(mark.get("transform")).partition("(")[2].split()[0])


@pytest.mark.parametrize("hostile", ["<script>x()</script>", '"><img src=x onerror=x()>', "'onload='x()", "]]>", "-->"])
def test_a_strangers_text_opens_no_tag_and_no_attribute(hostile: str) -> None:
    record = case(
        gpu=hostile,
        lane=hostile,
        reason=hostile,
        evidence=(*EVIDENCE, seen(Source.KERNEL_LOG, 3, Xid(31, None, hostile))),
    )
    known = msgspec.structs.replace(client(CULPRIT), command=hostile)
    record = msgspec.structs.replace(record, id=hostile, clients=(known,), versions={hostile: hostile})
    report = build_report(record, {31: hostile})
    for tag, attributes in Tags(page.render(report)).seen:
        assert tag in ALLOWED
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style")]
    ET.fromstring(timeline.draw(report))


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.text(alphabet="<>&\"'/script\x00\x1b\u2028", max_size=60))
def test_no_text_whatever_breaks_the_page(text: str, worse: str) -> None:
    record = case(reason=text, evidence=(*EVIDENCE, seen(Source.KERNEL_LOG, 3, Xid(1, None, worse))))
    document = page.render(build_report(record))
    document.encode()
    assert {tag for tag, _ in Tags(document).seen} <= ALLOWED


def test_nothing_is_loaded_and_only_this_style_sheet_is_allowed() -> None:
    document = page.render(build_report(CASE))
    policy = next(a["content"] for t, a in Tags(document).seen if a.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*)</style>", document, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert f"style-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert "url(" not in document
    assert "@import" not in document


def test_every_moment_has_its_mark_and_the_culprits_differ_in_shape() -> None:
    found = marks(drawn())
    assert sorted(found) == list(range(1, len(EVIDENCE) + len(CASE.decisions) + 1))
    culprits = {n for n, mark in found.items() if mark.get("class") == "mark culprit"}
    assert len(culprits) == 4
    shapes = {str(mark.get("class")): [child.tag for child in mark][1] for mark in found.values()}
    assert shapes["mark culprit"] != shapes["mark victim"] != shapes["mark sensor"]


def test_time_runs_to_the_right_and_all_of_it_is_within_the_drawing() -> None:
    for last in (0.0, 14.4, 49.0, 51.0, 4_000.0, 3_600_000.0):
        found = marks(drawn(evidence=(*EVIDENCE, seen(Source.KERNEL_LOG, last, Lost(1)))))
        places = [x_of(found[number]) for number in sorted(found)]
        assert places == sorted(places)
        assert places[0] > 0
        assert places[-1] <= 936


def test_a_long_incident_does_not_hide_its_beginning() -> None:
    found = marks(drawn(evidence=(*EVIDENCE, seen(Source.KERNEL_LOG, 60_000, Lost(1)))))
    by_number = {n: x_of(mark) for n, mark in found.items()}
    assert by_number[5] - by_number[4] > 20, "access and Xid, 2.1 ms apart, within a minute"


def test_many_processes_are_drawn_within_bounds() -> None:
    crowd = tuple(seen(Source.PROCESSES, n / 10, Lost(1), ProcessKey(10_000 + n, n)) for n in range(200))
    svg = drawn(evidence=(*EVIDENCE, *crowd))
    assert len(marks(svg)) == len(EVIDENCE) + len(CASE.decisions) + 200
    assert float(str(svg.get("viewBox")).split()[3]) < 1100
    assert "all others" in "".join(svg.itertext())


def test_it_has_a_text_alternative() -> None:
    svg = drawn()
    named = str(svg.get("aria-labelledby")).split()
    assert [element.get("id") for element in svg if element.tag in (f"{SVG}title", f"{SVG}desc")] == named
    assert "4242" in "".join(svg.itertext())
    assert svg.get("role") == "img"


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [page.LIGHT, page.DARK], ids=["light", "dark"])
def test_text_can_be_read(palette: dict[str, str]) -> None:
    """WCAG AA: 4.5 to 1, for every colour that text has on every ground that it stands on."""
    for ink in ("ink", "quiet", "culprit", "candidate", "victim", "sensor", "guard"):
        for ground in ("paper", "even", "odd", "accused"):
            light, dark = sorted((luminance(palette[ink]), luminance(palette[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


def test_the_page_starts_with_the_verdict() -> None:
    document = page.render(build_report(CASE))
    assert document.index("caused a memory fault") < document.index("<svg") < document.index("<table")


def test_a_long_command_is_shortened_in_the_middle_and_whole_on_hover() -> None:
    command = f"python train.py {'--option=value ' * 20}--last"
    known = msgspec.structs.replace(client(CULPRIT), command=command)
    document = page.render(build_report(msgspec.structs.replace(CASE, clients=(known,))))
    tags = Tags(document).seen
    titles = {attributes["title"] for tag, attributes in tags if tag == "abbr"}
    assert titles == {command.strip()}
    visible = re.sub(r"<[^>]*>", "", document)
    assert "--last" in visible
    assert command.strip() not in visible.replace("\n", " ").partition("Facts")[0].partition("Timeline of")[0]


def test_our_advice_shows_commands_as_code_and_no_backticks() -> None:
    document = page.render(build_report(CASE))
    assert "`" not in document.partition("What to do")[2].partition("Facts")[0]
    assert "<code>" in document


def test_a_moment_just_before_the_beginning_is_not_minus_nothing() -> None:
    early = msgspec.structs.replace(EVIDENCE[0], happened_at=CASE.incident.began - 1e-7)
    document = page.render(build_report(case(evidence=(early, *EVIDENCE[1:]))))
    assert ">-0.000" not in document


def test_the_narrow_timeline_has_every_moment_within_its_width() -> None:
    svg = ET.fromstring(timeline.draw(build_report(CASE), timeline.NARROW))
    assert marks(svg).keys() == marks(drawn()).keys()
    assert all(0 <= x_of(mark) <= timeline.NARROW.width for mark in marks(svg).values())
