"""The matrix of faults: what is judged, what is kept, what is counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from fault_injection import catalog
from tests.bench.core.errors import SuiteError
from tests.bench.results.schema import Result
from tests.bench.triage import injection, kernel_log, rows
from tests.bench.triage.__main__ import main
from tests.bench.triage.cells import Cell, CellFile, Innocent, XidSeen, file_name, merged, read, write
from tests.bench.triage.matrix import Plan
from tests.bench.triage.memory_group import _hierarchies
from tests.bench.triage.verdict import NO_INCIDENT, RIGHT, UNKNOWN, WRONG, Report, Verdict, judge, report

pytestmark = pytest.mark.slow(seconds=15, reason="runs a matrix on the simulated stack")

CULPRIT, INNOCENTS = 7, (8, 9, 10)


def said(culprit: int | None = CULPRIT, fault_class: str = "mmu", at: float | None = None, name: str = "1") -> Report:
    return Report(name, fault_class, culprit, "proven", at)


def judged(fault: str, published: Sequence[Report], listed: Sequence[Report] = (), by: int | None = CULPRIT) -> Verdict:
    return judge(
        catalog.named(fault), 100.0, culprit=by, innocents=INNOCENTS, published=published, listed=listed or published
    )


def test_a_right_verdict_has_its_latency() -> None:
    verdict = judged("null", [said(at=100.003)])
    assert (verdict.culprit, verdict.class_right, verdict.latency_ms) == (RIGHT, True, 3.0)


def test_the_latency_is_that_of_the_verdict_not_of_the_first_word() -> None:
    verdict = judged("null", [said(None, at=100.003), said(at=100.5)])
    assert (verdict.culprit, verdict.latency_ms) == (RIGHT, 500.0)


def test_not_knowing_is_no_accusation() -> None:
    assert judged("misaligned", [said(None, "sm", 100.02)]).culprit == UNKNOWN


@pytest.mark.parametrize("named", [INNOCENTS[0], 4711])
def test_naming_anybody_else_is_wrong_even_when_taken_back(named: int) -> None:
    taken_back = judged("null", [said(named, at=100.003), said(at=100.004)])
    beside = judged("null", [said(at=100.003), said(named, "process", 100.1, "2")])
    assert taken_back.culprit == beside.culprit == WRONG
    assert str(named) in beside.why


def test_no_client_is_to_blame_for_a_lane() -> None:
    assert judged("server", [said(None, "lane")], by=None).culprit == RIGHT
    assert judged("server", [said(INNOCENTS[0], "lane")], by=None).culprit == WRONG


def test_silence_is_right_where_nothing_happened_to_others() -> None:
    assert judged("assert", []).class_right
    silent = judged("null", [])
    assert (silent.culprit, silent.class_right) == (NO_INCIDENT, False)


@pytest.mark.parametrize(("in_flight", "signal", "right"), [(True, 9, True), (None, 9, False), (True, 11, False)])
def test_the_end_of_a_process_is_derived_from_its_evidence(in_flight: bool | None, signal: int, right: bool) -> None:
    ended = {"type": "process_ended", "signal": signal, "oom_killed": False, "work_in_flight": in_flight}
    evidence = ({"what": ended, "process": {"pid": CULPRIT}},)
    incident = msgspec.structs.replace(said(fault_class="process"), evidence=evidence)
    assert judged("kill", [incident]).end_right is right


def test_an_incident_is_found_however_deep() -> None:
    incident = {"fault_class": "mmu", "culprit": {"pid": 7}, "confidence": "proven", "evidence": [{"what": {}}]}
    flat = report({"id": "a", "published_at": 5.0, **incident})
    wrapped = report({"id": "a", "published_at": 5.0, "incident": incident})
    assert flat == wrapped == Report("a", "mmu", 7, "proven", 5.0, None, ({"what": {}},))
    assert report({"id": "a", "fault_class": "mmu", "culprit": 7}) == Report("a", "mmu", 7, "")
    bundle = report({"version": 1, "record": {"id": "a", "incident": incident}})
    assert bundle is not None
    assert bundle.id == "a"
    assert report({"kind": "other"}) is None


def test_xid_lines_of_the_kernel_log() -> None:
    line = "4,1234,5000000,-;NVRM: Xid (PCI:0000:18:00): 31, pid=459, name=worker, channel 0x02000008, intr 0\n"
    assert kernel_log.parse(line) == kernel_log.XidLine(5.0, 31, 459)
    unknown = kernel_log.parse("4,1,7000000,-;NVRM: Xid (PCI:0000:18:00): 13, pid='<unknown>', name=<unknown>, x")
    assert unknown == kernel_log.XidLine(7.0, 13, None)
    assert kernel_log.parse("6,1,7,-;usb 1-1: new device") is None


def test_memory_groups_are_looked_for_where_they_are_mounted() -> None:
    assert list(_hierarchies("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ntmpfs /x tmpfs rw 0 0")) == [
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")
    ]


def cell(fault: str, arm: str, repetition: int = 0, verdict: Verdict | None = None, **more: object) -> Cell:
    xids = (XidSeen(31, "innocent", 140.0),)
    made = Cell(fault, arm, repetition, ("x",), 700, 700, 3, (Innocent(700, 150.0),) * 3, xids, verdict)
    return msgspec.structs.replace(made, **more)


def test_cells_are_written_and_read_again(tmp_path: Path) -> None:
    content = CellFile("2026-11-20", "abcdef0", "GPU", "580", "13.0", (cell("null", "stock"), cell("far", "stock")))
    path = tmp_path / file_name(content.date)
    write(path, content)
    assert path.name == "triage-cells-20261120.json"
    assert read(path) == content
    assert len(json.loads(path.read_text())["cells"]) == 2


def test_a_later_cell_replaces_an_earlier_one_unless_it_failed() -> None:
    base = CellFile("2026-11-20", "abcdef0", None, None, None, (cell("null", "stock", error="no"),))
    good = msgspec.structs.replace(base, cells=(cell("null", "stock"),))
    assert merged([base, good]).cells == merged([good, base]).cells == good.cells
    with pytest.raises(SuiteError, match="do not mix"):
        merged([base, msgspec.structs.replace(good, commit="1234567")])


def test_rows_count_what_matters() -> None:
    right = Verdict(RIGHT, "mmu", class_right=True, latency_ms=3.0)
    wrong = Verdict(WRONG, "mmu", class_right=True, latency_ms=4.0, why="named innocent 8")
    cells = [cell("null", "stock"), cell("null", "guarded", 0, right), cell("null", "guarded", 1, wrong)]
    cells.append(cell("far", "stock", effects=()))
    found = {each.row.name: each.row for each in rows.findings(cells, 1)}
    assert (found["mmu: culprit right"].value, found["mmu: culprit right"].holds) == (1, False)
    peer = found["mmu: culprit right"].peer
    assert peer is not None
    assert (peer.value, peer.count) == (0, 4)
    assert (found["false accusations"].value, found["false accusations"].count) == (1, 2)
    assert found["injected faults that showed no effect"].value == 1
    assert found["cells that could not be made"].value == 1
    assert found["mmu: injection to published incident, p50"].holds
    assert found["effects under stock MPS that differ from the table of faults"].holds


def test_without_a_verdict_no_row_holds() -> None:
    silent = Verdict("", why="unknown_command")
    found = list(rows.findings([cell("null", "guarded", 0, silent)], 0))
    assert [each.row.holds for each in found if each.row.name.startswith(("mmu", "false"))] == [False, False, False]


def test_a_run_cut_short_has_every_fault() -> None:
    plan = Plan(faults=catalog.FAULTS[:2], arms=("stock",))
    assert [key[0] for key in plan.keys(2)] == ["null", "near", "null", "near"]


def test_a_small_matrix_on_the_simulated_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPSGUARD_COMMIT", "0123456789abcdef")
    # No test waits for so long; on a slow machine the innocents take their time to die.
    monkeypatch.setattr(injection, "_DEATHS", 20.0)
    part = ["--simulated", "--repetitions", "1", "--out", str(tmp_path)]
    main([*part, "--faults", "misaligned,kill,endless,server", "--arms", "stock"])
    (first,) = tmp_path.glob("triage-cells-*.json")
    made = {each.fault: each for each in read(first).cells}
    assert [innocent.code for innocent in made["misaligned"].innocents] == [716] * 3
    assert made["kill"].ended == -9
    assert made["endless"].effects == ("kernel did not end",)
    assert [innocent.code for innocent in made["server"].innocents] == [806] * 3
    assert not any(rows.difference(each) for each in made.values())

    main([*part, "--faults", "null,kill", "--arms", "stock,guarded", "--cells", str(first)])
    said = capsys.readouterr()
    assert "stock kill" not in said.err.split("guarded kill")[0].split("stock null")[1], "it was made before"
    after = {each.key: each for each in read(first).cells}
    assert len(after) == len(made) + 3
    assert after["null", "guarded", 0].verdict is not None

    main(["--merge", "--cells", str(first), "--out", str(tmp_path / "merged")])
    (result,) = (tmp_path / "merged").glob("triage-2*.json")
    assert msgspec.json.decode(result.read_bytes(), type=Result).suite == "triage"


def test_what_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--faults", "nonsense"], ["--arms", "both"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert "no fault 'nonsense'" in capsys.readouterr().err
