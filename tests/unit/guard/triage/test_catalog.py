"""The Xid catalog: complete, sourced, and made by the script that says it makes it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from mpsguard.guard.incident import FaultClass
from mpsguard.guard.triage.catalog import DATA, Level, XidEntry, catalog, lookup
from tests.harness.tree import ROOT

SCRIPT = ROOT / "scripts" / "make-catalog"
ROWS = sorted(catalog().values(), key=lambda row: row.number)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module; its name has no ending, so it is loaded by path."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("make_catalog", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    return module


def test_committed_files_are_what_the_script_makes(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0


def test_the_check_can_fail(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = shutil.copy(DATA, tmp_path / "xid_catalog.json")
    Path(changed).write_text(Path(changed).read_text().replace("The SMs stopped", "The SMs went on", 1))
    monkeypatch.setattr(script, "DATA", Path(changed))
    monkeypatch.setattr(script, "REPOSITORY", tmp_path)
    assert script.main(["--check"]) == 1
    assert "xid_catalog.json is not what" in capsys.readouterr().err


def test_a_csv_becomes_rows(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "numbers.csv"
    table.write_text(
        "xid,mnemonic_catalog,mnemonic_nverror_h,immediate,investigatory,nvsentinel_action_2025,nvsentinel_severity\n"
        "31,A /\\nB,A,RESTART_APP,FIRST\\nSECOND,x,y\n"
        "900,,NEW_NAME,,,,\n"
        "901,X,X,SOME_WORKFLOW,,,\n"
    )
    data, page = tmp_path / "data.json", tmp_path / "page.md"
    monkeypatch.setattr(script, "DATA", data)
    monkeypatch.setattr(script, "PAGE", page)
    assert script.main([str(table)]) == 0
    rows = script.msgspec.json.decode(data.read_bytes(), type=script.XidCatalog).rows
    assert [(row.number, row.mnemonic, row.investigatory) for row in rows] == [
        (31, "A / B", "FIRST; SECOND"),
        (900, "NEW_NAME", ""),
        (901, "X", ""),
    ]
    assert [row.level for row in rows] == [Level.CLIENT, Level.UNKNOWN, Level.UNKNOWN]
    assert rows[0].explanation == lookup(31).explanation
    assert "catalog" not in rows[1].source
    assert page.read_text().partition("## ")[0].count("\n| ") == 4


@pytest.mark.parametrize("row", ROWS, ids=[str(row.number) for row in ROWS])
def test_every_row_says_what_it_is_and_has_a_source(row: XidEntry) -> None:
    assert row.mnemonic
    assert row.source
    assert row.basis
    assert row.date.count("-") == 2
    for line in (row.explanation, row.advice):
        assert line.endswith(".")
        assert "\n" not in line
        assert len(line) <= 120


def test_every_number_up_to_the_last_is_there() -> None:
    assert [row.number for row in ROWS] == list(range(1, 177))


def test_victims_are_never_an_incident_of_their_own() -> None:
    assert [row.number for row in ROWS if row.level is Level.SYMPATHETIC] == [43, 45]


def test_what_a_gpu_does_not_come_back_from_by_itself() -> None:
    for number in (46, 48, 62, 64, 79, 95, 119, 120, 140, 143, 158):
        assert lookup(number).level is Level.DEVICE, number
        assert lookup(number).fault_class is FaultClass.DEVICE, number


def test_a_gpu_is_not_given_up_for_what_a_client_did() -> None:
    for number, fault_class in ((13, FaultClass.SM), (31, FaultClass.MMU), (32, FaultClass.ENGINE)):
        assert lookup(number).level is Level.CLIENT
        assert lookup(number).fault_class is fault_class
    reset = {row.number for row in ROWS if row.immediate in ("RESET_GPU", "RESTART_BM")}
    device = {row.number for row in ROWS if row.level is Level.DEVICE}
    assert reset - device == {109}, "109 is disputed; the rest of what needs a reset is not"
    assert not {row.number for row in ROWS if row.level is Level.DEVICE and row.immediate == "RESTART_APP"}


def test_disputed_rows_say_so() -> None:
    assert [row.number for row in ROWS if row.disputed] == [108, 109, 160, 162]


def test_a_level_and_a_class_go_together() -> None:
    for row in ROWS:
        assert (row.level is Level.DEVICE) == (row.fault_class is FaultClass.DEVICE), row.number
        if row.level in (Level.INFORMATIONAL, Level.UNKNOWN):
            assert row.fault_class is None, row.number
        elif row.level is not Level.SYMPATHETIC:
            assert row.fault_class is not None, row.number


def test_an_unassigned_number_is_unknown() -> None:
    for number in (0, -1, 177, 99999):
        entry = lookup(number)
        assert (entry.number, entry.level, entry.fault_class) == (number, Level.UNKNOWN, None)
        assert entry.source == ""
