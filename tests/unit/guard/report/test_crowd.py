"""An incident with many clients: short first, and whole where it is asked for."""

import re

from mpsguard.guard.incident import Suspect
from mpsguard.guard.report import page, text, timeline
from mpsguard.guard.report.report_model import TrackRole, build_report, condensed
from tests.unit.guard.report.examples import CASE, case, crowd, suspect
from tests.unit.guard.report.test_page import Tags

REPORT = build_report(crowd())
NAMES = [f"--name worker-{number}" for number in range(26)]


def test_the_headline_counts_the_candidates() -> None:
    assert "one of 26, listed below" in REPORT.verdict
    assert "worker" not in REPORT.verdict
    assert len(REPORT.verdict) < 200


def test_on_a_terminal_it_fits_a_screen_and_names_every_process_by_its_pid() -> None:
    short = text.render(REPORT, 100)
    assert len(short.splitlines()) <= 45
    assert all(str(5000 + number) in short for number in range(26))
    assert f"mpsguard-ctl incident show {REPORT.id} --all" in " ".join(short.split())


def test_the_whole_has_every_process_and_every_moment() -> None:
    whole = " ".join(text.render(REPORT, 10_000, whole=True).split())
    assert all(name in whole for name in NAMES)
    assert all(f"{entry.ms:.3f}" in whole for entry in REPORT.entries)
    assert "--all" not in whole


def test_victims_that_are_the_candidates_are_not_listed_again() -> None:
    assert dict(REPORT.facts)["victims"] == "26, the candidates"
    assert set(REPORT.lists) == {"candidates"}
    fewer = crowd()
    others = build_report(case(candidates=fewer.incident.candidates, victims=fewer.incident.victims[1:]))
    assert set(others.lists) == {"candidates", "victims"}


def test_the_page_folds_lists_and_shows_what_repeats_once() -> None:
    document = page.render(REPORT)
    folded = re.findall(r"<details>.*?</details>", document, re.DOTALL)
    assert len(folded) == 2
    shown = document.partition("Facts</h2>")[2]
    for each in folded:
        shown = shown.replace(each, "")
    assert not any(name in shown for name in NAMES[1:])
    assert all(name in folded[0] for name in NAMES)
    assert folded[1].count("<tr ") == len(REPORT.entries)


def test_each_cell_of_the_page_says_its_column_for_narrow_windows() -> None:
    for record in (CASE, crowd()):
        cells = [attributes for tag, attributes in Tags(page.render(build_report(record))).seen if tag == "td"]
        assert cells
        assert {"What", "Process", "ms"} <= {str(attributes.get("data-label")) for attributes in cells}
        assert all(attributes.get("data-label") for attributes in cells)


def test_many_clients_leave_room_for_the_sensors_in_the_drawing() -> None:
    drawn = timeline.draw(REPORT)
    assert drawn.count('class="track candidate"') == 6
    assert ">server log<" in drawn
    assert ">all others<" in drawn


def test_nothing_is_folded_where_there_are_few() -> None:
    few = build_report(CASE)
    assert not few.lists
    assert [moment.entry for moment in condensed(few.entries)] == list(few.entries)
    assert text.render(few, 80) == text.render(few, 80, whole=True)
    assert "<details>" not in page.render(few)


def test_moments_of_the_culprit_are_all_told() -> None:
    record = crowd()
    culprit = record.incident.candidates[3]
    told = condensed(build_report(case(culprit=culprit, evidence=record.incident.evidence)).entries)
    culprits = [moment for moment in told if moment.entry.role is TrackRole.CULPRIT]
    assert len(culprits) == 2
    assert not any(moment.more for moment in culprits)


def test_three_candidates_are_named() -> None:
    three = tuple(map(suspect, (client.process for client in CASE.clients)))
    assert "tritonserver" in build_report(case(culprit=None, candidates=three)).verdict
    four = (*three, Suspect(7, None, False))
    assert "one of 4, listed below" in build_report(case(culprit=None, candidates=four)).verdict
