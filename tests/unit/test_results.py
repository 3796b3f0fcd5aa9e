"""Results: the form of the files, the tables made of them, and the files and the summary of this very tree."""

from __future__ import annotations

import datetime
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.gpu.results import main, origin
from tests.gpu.results.recorder import Recorder, peer
from tests.gpu.results.schema import DIRECTORY, Result, ResultError, encode, load, load_all, newest, superseded
from tests.gpu.results.table import NONE_YET, cells, figure, markdown, number, show

ROW = {
    "name": "clients that died",
    "value": 0,
    "unit": "clients",
    "bar": "0 of 4",
    "holds": True,
    "runs": 1,
    "count": 4,
}
FILE = {
    "suite": "broker",
    "date": "2026-01-31",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "gpu": "NVIDIA H200",
    "driver": "580.1",
    "cuda": "13.0",
    "script": "scripts/gpu-suite broker",
    "rows": [ROW],
}


def write(directory: Path, content: dict[str, Any], name: str = "broker-20260131.json") -> Path:
    path = directory / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def with_row(**changes: Any) -> dict[str, Any]:
    return {**FILE, "rows": [{**ROW, **changes}]}


def loaded(directory: Path, content: dict[str, Any]) -> Result:
    return load(write(directory, content))


def test_good_file_is_read(tmp_path: Path) -> None:
    result = loaded(tmp_path, FILE)
    assert result.date == datetime.date(2026, 1, 31)
    assert result.rows[0].count == 4
    assert result.holds


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"extra": 1}, "unknown field `extra`"),
        ({"date": "31.1.2026"}, "date"),
        ({"date": "2026-02-30"}, "date"),
        ({"commit": "unknown"}, "commit"),
        ({"suite": "Broker Suite"}, "suite"),
        ({"gpu": ""}, "gpu"),
        ({"rows": []}, "rows"),
        ({"rows": [ROW, ROW]}, "two rows are called"),
        (with_row(bar=""), "bar"),
        (with_row(holds="yes"), "holds"),
        (with_row(runs=0), "runs"),
        (with_row(value="fast"), "value"),
        (with_row(note="x"), "unknown field `note`"),
        (with_row(min=1.0), "go together"),
        (with_row(min=3.0, median=2.0, max=4.0), "does not hold"),
        (with_row(peer={"value": 1}), "name"),
        (with_row(peer={"name": "stock", "value": 1, "holds": True}), "unknown field `holds`"),
    ],
)
def test_wrong_file_is_refused_with_its_reason(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    path = write(tmp_path, {**FILE, **change})
    with pytest.raises(ResultError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", sorted(FILE))
def test_every_key_is_needed(tmp_path: Path, missing: str) -> None:
    with pytest.raises(ResultError, match=missing):
        loaded(tmp_path, {key: value for key, value in FILE.items() if key != missing})


@pytest.mark.parametrize("name", ["broker-20260201.json", "lanes-20260131.json", "broker.json"])
def test_file_must_be_called_by_suite_and_date(tmp_path: Path, name: str) -> None:
    with pytest.raises(ResultError, match=r"called broker-20260131\.json"):
        load(write(tmp_path, FILE, name))


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broker-20260131.json"
    path.write_text('{"suite": "bro', encoding="utf-8")
    with pytest.raises(ResultError, match="truncated"):
        load(path)


def test_newest_of_each_suite(tmp_path: Path) -> None:
    write(tmp_path, FILE)
    write(tmp_path, {**FILE, "date": "2025-12-31"}, "broker-20251231.json")
    write(tmp_path, {**FILE, "suite": "lanes", "date": "2025-01-01"}, "lanes-20250101.json")
    assert [result.file_name for result in newest(load_all(tmp_path))] == [
        "broker-20260131.json",
        "lanes-20250101.json",
    ]


def test_a_row_that_a_part_measured_again_is_shown_once(tmp_path: Path) -> None:
    again = {**ROW, "value": 1}
    write(tmp_path, {**FILE, "date": "2026-01-01", "rows": [ROW, {**ROW, "name": "other"}]}, "broker-20260101.json")
    write(
        tmp_path, {**FILE, "suite": "broker-part", "date": "2026-01-02", "rows": [again]}, "broker-part-20260102.json"
    )
    write(tmp_path, {**FILE, "suite": "lanes", "date": "2026-01-03", "rows": [ROW]}, "lanes-20260103.json")
    found = {result.suite: [(row.name, row.value) for row in result.rows] for result in newest(load_all(tmp_path))}
    assert found == {
        "broker": [("other", ROW["value"])],
        "broker-part": [(ROW["name"], 1)],
        "lanes": [(ROW["name"], ROW["value"])],
    }


def test_a_part_with_nothing_of_its_own_left_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path, {**FILE, "date": "2026-01-01"}, "broker-20260101.json")
    write(tmp_path, {**FILE, "suite": "broker-all", "date": "2026-01-02"}, "broker-all-20260102.json")
    assert [result.suite for result in newest(load_all(tmp_path))] == ["broker-all"]


def test_of_one_day_a_quick_run_gives_way(tmp_path: Path) -> None:
    quick = {**FILE, "suite": "broker-quick", "script": "scripts/gpu-suite broker --quick", "rows": [ROW]}
    write(tmp_path, quick, "broker-quick-20260131.json")
    write(tmp_path, {**FILE, "suite": "broker-part", "rows": [{**ROW, "value": 1}]}, "broker-part-20260131.json")
    (shown,) = newest(load_all(tmp_path))
    assert [(shown.suite, row.value) for row in shown.rows] == [("broker-part", 1)]


def test_of_one_day_the_later_measurement_is_shown() -> None:
    """A standby that reloads, and a cold restart: `failover-reload` is of a commit before that of the other two."""
    every = load_all()
    found = {row.name: result.file_name for result in newest(every) for row in result.rows}
    assert found["gpt2, reload, SM faults: fault to first finished operation (p50)"] == "failover-alone-20261122.json"
    assert found["gpt2, cold restart, SM faults: fault to first finished operation"] == "failover-cold-20261122.json"
    assert not any(each.by.file_name == "failover-reload-20261122.json" for each in superseded(every))


def test_every_row_of_every_file_is_shown_or_marked_as_superseded(tmp_path: Path) -> None:
    gone = {**ROW, "name": "no longer measured"}
    write(tmp_path, {**FILE, "date": "2026-01-01", "rows": [ROW, gone]}, "broker-20260101.json")
    write(tmp_path, {**FILE, "date": "2026-01-03"}, "broker-20260103.json")
    part = {**FILE, "suite": "broker-part", "date": "2026-01-03", "rows": [{**ROW, "value": 1}]}
    write(tmp_path, part, "broker-part-20260103.json")
    every = load_all(tmp_path)
    shown = [(result.file_name, row.name) for result in newest(every) for row in result.rows]
    marked = [(each.of.file_name, each.row.name, each.by.file_name) for each in superseded(every)]
    assert shown == [("broker-part-20260103.json", ROW["name"])]
    assert marked == [
        ("broker-20260101.json", ROW["name"], "broker-part-20260103.json"),
        ("broker-20260101.json", "no longer measured", "broker-20260103.json"),
        ("broker-20260103.json", ROW["name"], "broker-part-20260103.json"),
    ]
    text = markdown(newest(every), superseded(every))
    assert "## Superseded" in text
    assert (
        "| no longer measured | 0 of 4 clients | 0 of 4 | yes | broker-20260101.json | broker-20260103.json |" in text
    )


def test_encode_and_load_are_inverse(tmp_path: Path) -> None:
    result = loaded(tmp_path, with_row(min=0, median=0, max=2, peer={"name": "stock MPS", "value": 4, "count": 4}))
    again = tmp_path / "again"
    again.mkdir()
    (again / result.file_name).write_bytes(encode(result))
    assert load(again / result.file_name) == result


def test_row_that_does_not_hold_is_shown_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, with_row(value=3, holds=False))
    assert main.main(["--directory", str(tmp_path), "--markdown"]) == 1
    shown = capsys.readouterr().out
    assert "| 3 of 4 clients |  | 0 of 4 | **NO** |" in shown
    assert "0 of 1 bars hold." in shown
    assert main.main(["--directory", str(tmp_path)]) == 1
    assert "NO" in capsys.readouterr().out


def test_row_that_is_withdrawn_counts_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, with_row(value=3, holds=False, withdrawn="the counter was wrong"))
    assert main.main(["--directory", str(tmp_path), "--markdown"]) == 0
    shown = capsys.readouterr().out
    assert "| clients that died | withdrawn: the counter was wrong |  | 0 of 4 | - |" in shown
    assert "0 of 0 bars hold." in shown


def test_row_that_holds_is_shown_beside_its_peer(tmp_path: Path) -> None:
    result = loaded(tmp_path, with_row(peer={"name": "stock MPS", "value": 4, "count": 4}))
    assert cells(result.rows[0]) == (
        "clients that died",
        "0 of 4 clients",
        "stock MPS: 4 of 4 clients",
        "0 of 4",
        "yes",
    )


def test_file_not_in_order_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {**FILE, "commit": "?"})
    assert main.main(["--directory", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (65567, "65,567"), (65567.4, "65,567"), (0.99874, "0.9987"), (12.3456, "12.35")]
)
def test_numbers_are_readable(value: float, text: str) -> None:
    assert number(value) == text


def test_spread_is_shown() -> None:
    assert figure(peer("stock", [3.0, 1.0, 2.0]), "ms") == "2 ms (1 to 3, n = 3)"


def test_markup_in_a_result_stays_text(tmp_path: Path) -> None:
    result = loaded(tmp_path, with_row(name="a|b <!-- x", bar="[0, 3] *ms*"))
    assert r"| a\|b &lt;!-- x |" in markdown([result])
    console = Console(width=200, record=True, file=io.StringIO())
    show([result], console)
    assert "[0, 3] *ms*" in console.export_text()


def test_a_row_without_a_bar_neither_holds_nor_fails(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "name": "seconds", "bar": "reported beside it"}]
    result = loaded(tmp_path, {**FILE, "rows": rows})
    assert [cells(row)[-1] for row in result.rows] == ["yes", "-"]
    assert "1 of 1 bars hold." in markdown([result])


def test_recorder_writes_what_load_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(origin.COMMIT_VARIABLE, "abcdef0-dirty")
    monkeypatch.setattr(origin, "gpu", lambda: origin.Gpu("NVIDIA H200", "580.1", "13.0"))
    path = (
        Recorder(suite="broker", script="scripts/gpu-suite broker", date=datetime.date(2026, 1, 31))
        .row("clients that died", 0, unit="clients", bar="0 of 4", holds=True, count=4)
        .measured("start", [1.0, 3.0, 2.0], unit="ms", bar="<= 3 ms", holds=True, peer=peer("stock MPS", [1.0, 1.0]))
        .write(tmp_path)
    )
    assert path == tmp_path / "broker-20260131.json"
    result = load(path)
    assert (result.commit, result.gpu, result.driver, result.cuda) == ("abcdef0-dirty", "NVIDIA H200", "580.1", "13.0")
    assert (result.rows[1].value, result.rows[1].min, result.rows[1].max, result.rows[1].runs) == (2.0, 1.0, 3.0, 3)


def test_recorder_writes_nothing_that_could_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(origin.COMMIT_VARIABLE, "abcdef0")
    recorder = Recorder(suite="broker", script="x").row("a", 1, unit="", bar="1", holds=True)
    kept = recorder.write(tmp_path).read_bytes()
    recorder.row("a", 2, unit="", bar="1", holds=True)
    with pytest.raises(ResultError, match="two rows"):
        recorder.write(tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [kept]


@pytest.mark.parametrize("commit", ["head", "abcdef0-new", "ABCDEF0"])
def test_what_is_no_commit_is_said_before_anything_is_measured(commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(origin.COMMIT_VARIABLE, commit)
    with pytest.raises(ResultError, match=commit):
        Recorder(suite="broker", script="x")


def test_no_commit_is_said_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(origin.COMMIT_VARIABLE, raising=False)
    monkeypatch.setattr(origin, "REPOSITORY", tmp_path)
    with pytest.raises(ResultError, match=origin.COMMIT_VARIABLE):
        Recorder(suite="broker", script="x")


def test_commit_says_whether_the_tree_is_as_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    monkeypatch.delenv(origin.COMMIT_VARIABLE, raising=False)
    monkeypatch.setattr(origin, "REPOSITORY", tmp_path)
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    clean = origin.commit()
    assert len(clean) == 40
    # What the run before this one wrote is no change to what is measured.
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "broker-20260131.json").touch()
    assert origin.commit() == clean
    (tmp_path / "changed").touch()
    assert origin.commit() == f"{clean}-dirty"


@pytest.mark.parametrize(
    ("header", "version"),
    [("| Driver Version: 580.1   CUDA Version: 13.0 |", "13.0"), ("CUDA UMD Version: 13.2", "13.2"), ("no GPU", None)],
)
def test_cuda_version_is_read_from_the_header(header: str, version: str | None) -> None:
    assert origin.cuda_version(header) == version


def test_gpus_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        '#!/bin/sh\ncase "$*" in *query*) echo "NVIDIA H200, 580.1"; echo "NVIDIA H200, 580.1" ;; '
        '*) echo "CUDA Version: 13.0" ;; esac\n',
        encoding="ascii",
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert origin.gpu() == origin.Gpu("2 x NVIDIA H200", "580.1", "13.0")


def test_machine_without_a_gpu_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert origin.gpu() == origin.Gpu(None, None, None)


def test_the_files_of_this_tree_are_in_order() -> None:
    assert all(result.rows for result in load_all(DIRECTORY))


def test_the_summary_shows_the_newest_results() -> None:
    summary = (DIRECTORY / main.SUMMARY).read_text(encoding="utf-8")
    every = load_all(DIRECTORY)
    assert markdown(newest(every), superseded(every)) == summary, "run scripts/results --write-summary"


def test_no_results_is_said() -> None:
    assert NONE_YET in markdown([])
