"""The journal's file: bounded, refused when it is another's, begun anew when it is damaged."""

import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.journal.records import JournalError, JournalLimits
from mpsguard.guard.journal.schema import APPLICATION_ID, VERSION
from tests.harness.tree import ROOT
from tests.unit.guard.journal.incidents import came, fault, incident, wait, xid

SMALL = JournalLimits(incidents=8, evidence=60, bytes=256 << 10)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("evidence"), st.integers(1, 80), st.integers(0, 2000)),
        st.tuples(st.just("incident"), st.integers(1, 12), st.integers(0, 60_000)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@hypothesis_settings(max_examples=40, deadline=None)
@given(steps)
def test_whatever_is_recorded_the_file_stays_within_its_bounds(todo: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory(prefix="mg-") as directory:
        path = Path(directory) / "journal.db"
        journal = Journal.open(path, SMALL)
        newest, number = None, 0
        for kind, count, size in todo:
            for _ in range(count):
                number += 1
                if kind == "evidence":
                    journal.record_evidence(xid(float(number), "x" * size))
                elif kind == "incident":
                    pieces = (fault(float(number), number), xid(number + 0.5, "x" * size))
                    newest = journal.record_incident(incident(*pieces, culprit=number))
            if kind == "reopen":
                journal.close()
                journal = Journal.open(path, SMALL)
            kept = wait(journal.list())
            assert len(kept) <= SMALL.incidents
            assert newest is None or kept[0].id == newest, "the newest is what is kept"
        assert journal.dropped == 0
        journal.close()
        assert path.stat().st_size <= SMALL.bytes + (64 << 10)
        with sqlite3.connect(path) as database:
            assert database.execute("SELECT count(*) FROM evidence").fetchone()[0] <= SMALL.evidence
            assert database.execute("SELECT count(*) FROM decisions").fetchone()[0] == 0
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        database.close()


def test_a_flood_within_one_incident_keeps_how_it_began_and_how_it_ended(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db", SMALL)
    pieces = tuple(xid(float(number), "x" * 500) for number in range(1000))
    found = wait(journal.get(journal.record_incident(incident(*pieces))))
    kept = found.incident.evidence
    assert 0 < len(kept) < 100
    assert found.evidence_left_out == 1000 - len(kept)
    assert (kept[0], kept[-1]) == (pieces[0], pieces[-1])
    journal.close()


def test_a_flood_of_evidence_costs_no_incident_and_no_living_client(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db", JournalLimits(incidents=100, evidence=1000, bytes=256 << 10))
    arrival = came(0.0, 1)
    journal.record_evidence(arrival)
    name = journal.record_incident(incident(fault(50.0, 1), culprit=1))
    for number in range(2000):
        journal.record_evidence(xid(1000.0 + number, "x" * 1000))
    assert arrival in wait(journal.export(name)).evidence
    journal.close()


def test_with_their_incident_its_decisions_go(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db", SMALL)
    for number in range(50):
        name = journal.record_incident(incident(fault(float(number), number), culprit=number))
        journal.record_decision(name, "decided", "something")
    journal.close()
    with sqlite3.connect(tmp_path / "journal.db") as database:
        kept = database.execute("SELECT count(*) FROM incidents").fetchone()[0]
        assert database.execute("SELECT count(*) FROM decisions").fetchone()[0] == kept <= SMALL.incidents
    database.close()


def written(path: Path) -> str:
    journal = Journal.open(path)
    for number in range(40):
        journal.record_evidence(xid(float(number), "x" * 500))
    name = journal.record_incident(incident())
    journal.close()
    return name


def still_works(path: Path) -> list[str]:
    """Open what is there, use it, and return the events of it."""
    heard: list[str] = []

    def on_notice(kind: str, _: Mapping[str, Any]) -> None:
        heard.append(kind)

    journal = Journal.open(path, on_notice=on_notice)
    name = journal.record_incident(incident(), id="20990101-000000-1")
    wait(journal.list())
    assert wait(journal.get(name)).id == name
    journal.close()
    return heard


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\0" + b"\xff" * 4096, b"\0" * 100_000])
def test_a_file_that_is_no_journal_any_more_is_put_aside_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    assert still_works(path) == ["journal_damaged"]
    (aside,) = tmp_path.glob("journal.db.damaged-*")
    assert aside.read_bytes() == content


def test_a_file_that_may_only_be_read_by_its_header_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    written(path)
    content = bytearray(path.read_bytes())
    content[18] = 3  # "file format write version"
    path.write_bytes(content)
    assert still_works(path) == ["journal_damaged"]


def test_damaged_files_are_not_collected_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for number in range(6):
        path.write_bytes(b"damage %d" % number * 100)
        still_works(path)
    assert len(list(tmp_path.glob("*damaged*"))) == 2


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.data())
def test_cut_or_overwritten_anywhere_the_journal_opens_or_says_in_one_line_why_not(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(prefix="mg-") as directory:
        path = Path(directory) / "journal.db"
        written(path)
        whole = path.read_bytes()
        at = data.draw(st.one_of(st.integers(0, 200), st.integers(0, len(whole) - 1)))
        if data.draw(st.booleans()):
            path.write_bytes(whole[:at])
        else:
            noise = data.draw(st.binary(min_size=1, max_size=64))
            path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
        try:
            still_works(path)
            refused = ""
        except JournalError as error:
            refused = str(error)
        # A header may come to name a newer version or another program: that is refused, nothing else is.
        assert refused == "" or "newer mpsguard" in refused or "another program" in refused


def header(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()


def test_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    written(path)
    header(path, f"PRAGMA user_version={VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(JournalError, match=rf"version {VERSION + 1} .* newer mpsguard"):
        Journal.open(path)
    assert path.read_bytes() == before
    assert list(tmp_path.glob("*damaged*")) == []


def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    header(path, "CREATE TABLE theirs (x)")
    with pytest.raises(JournalError, match="another program"):
        Journal.open(path)
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM theirs").fetchone() == (0,)
    database.close()


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    written(tmp_path / "journal.db")
    with sqlite3.connect(tmp_path / "journal.db") as database:
        values = [
            database.execute(f"PRAGMA {n}").fetchone()[0] for n in ("application_id", "user_version", "auto_vacuum")
        ]
        assert values == [APPLICATION_ID, VERSION, 2]
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


def test_two_guards_cannot_share_it(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    program = "import sys, pathlib, mpsguard.guard.journal.journal as j; j.Journal.open(pathlib.Path(sys.argv[1]))"
    refused = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "journal.db")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    journal.close()
    assert "JournalError" in refused.stderr.splitlines()[-1]
    assert "locked" in refused.stderr.splitlines()[-1]
    assert list(tmp_path.glob("*damaged*")) == []


FULL_DISK = """
import asyncio, signal, sys
from pathlib import Path
from mpsguard.guard.journal.journal import Journal
from tests.unit.guard.journal.incidents import incident, fault, xid, wait
import resource
heard = []
journal = Journal.open(Path(sys.argv[1]), on_notice=lambda kind, data: heard.append(kind))
first = journal.record_incident(incident())
wait(journal.flush())
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for number in range(2000):
    journal.record_evidence(xid(float(number), "x" * 1000))
wait(journal.flush())
assert journal.dropped > 0
assert wait(journal.get(first)).id == first
assert heard.count("journal_failed") >= 1, heard
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
again = journal.record_incident(incident(fault(1.0, 5), culprit=5))
assert wait(journal.get(again)).id == again
journal.close()
print("well")
"""


def test_a_full_disk_costs_records_and_nothing_else(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "journal.db")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "well\n", done.stderr
    assert wait_open(tmp_path / "journal.db") == 2


def wait_open(path: Path) -> int:
    journal = Journal.open(path)
    count = len(wait(journal.list()))
    journal.close()
    return count
