"""Findings: rows of the result file, and the table on the terminal."""

import datetime
from pathlib import Path

import pytest

from tests.bench.core import table
from tests.bench.core.finding import Finding, all_of, none_of, not_measured, sampled
from tests.bench.results.recorder import Recorder
from tests.bench.results.schema import Peer, Row, load


def start() -> Finding:
    return sampled(
        "start", [2.0, 1.23456789, 9.0], unit="ms", bar="<= 3 ms", holds=True, peer=[4.0, 5.0, 6.0], note="one note"
    )


def test_a_sample_is_its_median_with_the_spread_and_the_peer() -> None:
    assert start().row == Row(
        name="start",
        value=2.0,
        min=1.23457,
        median=2.0,
        max=9.0,
        count=3,
        unit="ms",
        bar="<= 3 ms",
        holds=True,
        runs=3,
        peer=Peer(name="stock", value=5.0, min=4.0, median=5.0, max=6.0, count=3),
    )


def test_counting_rows_hold_only_when_all_is_there() -> None:
    assert all_of("x", 4, 4, "clients").row.holds
    assert not all_of("x", 3, 4, "clients").row.holds
    assert none_of("x", 0, 20, "clients", runs=3).row.holds
    assert not none_of("x", 1, 20, "clients", runs=3).row.holds
    assert not none_of("x", 0, 0, "clients", runs=3).row.holds, "nothing tried proves nothing"


def test_every_kind_of_finding_can_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSGUARD_COMMIT", "0123456789abcdef")
    findings = [
        start(),
        all_of("all", 4, 4, "clients"),
        none_of("none", 0, 0, "clients", peer=Peer(name="stock", value=3)),
        not_measured("bad", "it broke"),
    ]
    recorder = Recorder(suite="broker", script="scripts/gpu-suite broker", date=datetime.date(2026, 11, 20))
    for finding in findings:
        finding.record(recorder)
    read = load(recorder.write(tmp_path))
    assert list(read.rows) == [finding.row for finding in findings]
    assert not read.holds


def test_the_table_shows_what_does_not_hold_and_why() -> None:
    lines = list(table.lines([start(), none_of("refused", 2, 20, "clients", note="two died")]))
    assert lines[0].startswith("Measured")
    assert "stock: 5 ms (4 to 6, n = 3)" in lines[2]
    assert lines[3].strip() == "one note"
    assert lines[4].endswith("NO")
    assert lines[5].strip() == "two died"
