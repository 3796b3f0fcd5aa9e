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

from tests.bench.results import main, origin, summary
from tests.bench.results.recorder import Recorder, peer
from tests.bench.results.schema import DIRECTORY, Result, ResultError, encode, load, load_all, newest
from tests.bench.results.summary import Subject, markdown
from tests.bench.results.table import NONE_YET, cells, figure, held, number, show

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
    found = {suite: result.file_name for suite, result in newest(load_all(tmp_path)).items()}
    assert found == {"broker": "broker-20260131.json", "lanes": "lanes-20250101.json"}


DEATHS = Subject("Survival", ("died", "seconds"), (("a client", "broker", "clients that died", ""),))


def test_a_line_has_its_figure_what_was_beside_it_and_its_run(tmp_path: Path) -> None:
    write(tmp_path, with_row(peer={"name": "stock", "value": 4, "count": 4}))
    text = markdown(load_all(tmp_path), [DEATHS])
    assert "## Survival\n\n|  | died | seconds | run |\n" in text
    line = "| a client | 0 of 4 clients; stock: 4 of 4 clients |  | [H200, 580.1, 2026-01-31](broker-20260131.json) |"
    assert line in text.splitlines()


def test_a_line_named_by_its_suite_is_of_the_newest_run(tmp_path: Path) -> None:
    write(tmp_path, FILE)
    write(tmp_path, {**with_row(value=1), "date": "2026-02-01"}, "broker-20260201.json")
    older = Subject("Before", ("died",), (("a client", "broker-20260131", "clients that died"),))
    text = markdown(load_all(tmp_path), [DEATHS, older])
    assert "| a client | 1 of 4 clients |  | [H200, 580.1, 2026-02-01](broker-20260201.json) |" in text
    assert "| a client | 0 of 4 clients | [H200, 580.1, 2026-01-31](broker-20260131.json) |" in text


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            ("a client", "broker-20260201", "clients that died", ""),
            "Survival: a client: there is no run broker-20260201",
        ),
        (("a client", "lanes", "clients that died", ""), "there is no run lanes"),
        (("a client", "broker", "clients that lived", ""), "broker-20260131.json has no row 'clients that lived'"),
    ],
)
def test_a_line_of_what_is_not_there_is_a_mistake(tmp_path: Path, line: tuple[str, ...], complaint: str) -> None:
    write(tmp_path, FILE)
    with pytest.raises(ResultError, match=complaint):
        markdown(load_all(tmp_path), [Subject("Survival", ("died", "seconds"), (line,))])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[subject]]\ntitle = "x"\ncolumns = ["a"]\nlines = [["x", "broker"]]', "label, run and 1 rows are wanted"),
        ('[[subject]]\ntitle = "x"\ncolumns = []\nlines = [["x", "broker"]]', "columns"),
        ('[[subject]]\ntitle = "x"\nlines = []', "lines"),
        ("[[subject]", "TOML|array"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_selection_is_refused_with_its_reason(
    tmp_path: Path, text: str | None, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / summary.SELECTION).write_text(text, encoding="utf-8")
    with pytest.raises(ResultError, match=complaint):
        summary.load(tmp_path)
    assert main.main(["--directory", str(tmp_path), "--write-summary"]) == 2
    assert capsys.readouterr().err.startswith("results: ")


def test_a_missed_bar_is_shown_with_it_and_where_it_was_measured_again(tmp_path: Path) -> None:
    write(tmp_path, with_row(value=3, holds=False))
    write(tmp_path, {**FILE, "suite": "broker-part", "date": "2026-02-01"}, "broker-part-20260201.json")
    text = markdown(load_all(tmp_path), [DEATHS])
    run = "[H200, 580.1, 2026-01-31](broker-20260131.json)"
    again = "[again on 2026-02-01](broker-part-20260201.json)"
    assert f"| a client | **3 of 4 clients** (bar: 0 of 4) |  | {run} |" in text
    assert f"| clients that died | 3 of 4 clients | 0 of 4 | {run} | {again} |" in text
    assert "| [broker-20260131](broker-20260131.json) | 0 of 1 | `scripts/gpu-suite broker` |" in text


def test_a_run_is_superseded_by_a_newer_one_of_its_suite_and_gpu_if_no_line_is_of_it(tmp_path: Path) -> None:
    for date in ("2026-01-01", "2026-01-02", "2026-01-03"):
        write(tmp_path, {**FILE, "date": date}, f"broker-{date.replace('-', '')}.json")
    write(tmp_path, {**FILE, "suite": "broker-part"}, "broker-part-20260131.json")
    line = ("a client", "broker-20260102", "clients that died", "")
    found = summary.superseded(load_all(tmp_path), [Subject("Survival", ("died", "seconds"), (line,))])
    assert found == ["broker-20260101.json"]


def test_a_run_on_another_gpu_supersedes_none(tmp_path: Path) -> None:
    for date, gpu in (("2026-01-01", "H100"), ("2026-01-02", "H200"), ("2026-01-03", "H100")):
        write(tmp_path, {**FILE, "date": date, "gpu": gpu}, f"broker-{date.replace('-', '')}.json")
    assert summary.superseded(load_all(tmp_path), []) == ["broker-20260101.json"]


def test_encode_and_load_are_inverse(tmp_path: Path) -> None:
    result = loaded(tmp_path, with_row(min=0, median=0, max=2, peer={"name": "stock MPS", "value": 4, "count": 4}))
    again = tmp_path / "again"
    again.mkdir()
    (again / result.file_name).write_bytes(encode(result))
    assert load(again / result.file_name) == result


def test_row_that_does_not_hold_is_shown_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, with_row(value=3, holds=False))
    assert main.main(["--directory", str(tmp_path)]) == 1
    assert "NO" in capsys.readouterr().out


def test_row_that_is_withdrawn_counts_for_nothing(tmp_path: Path) -> None:
    write(tmp_path, with_row(value=3, holds=False, withdrawn="the counter was wrong"))
    assert main.main(["--directory", str(tmp_path)]) == 0
    (result,) = load_all(tmp_path)
    assert cells(result.rows[0])[1] == "withdrawn: the counter was wrong"
    text = markdown(load_all(tmp_path), [DEATHS])
    assert "| a client | withdrawn |" in text
    assert summary.NOTHING_MISSED in text
    assert "| 0 of 0 |" in text


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


def test_spread_is_shown_of_more_than_one_sample() -> None:
    assert figure(peer("stock", [3.0, 1.0, 2.0]), "ms") == "2 ms (1 to 3, n = 3)"
    assert figure(peer("stock", [3.0]), "ms") == "3 ms"


def test_markup_in_a_result_stays_text(tmp_path: Path) -> None:
    result = loaded(tmp_path, with_row(name="a|b <!-- x", bar="[0, 3] *ms*", holds=False))
    assert r"| a\|b &lt;!-- x | 0 of 4 clients | [0, 3] \*ms\* |" in markdown([result], [])
    console = Console(width=200, record=True, file=io.StringIO())
    show([result], console)
    assert "[0, 3] *ms*" in console.export_text()


def test_a_row_without_a_bar_neither_holds_nor_fails(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "name": "seconds", "bar": "reported beside it"}]
    result = loaded(tmp_path, {**FILE, "rows": rows})
    assert [cells(row)[-1] for row in result.rows] == ["yes", "-"]
    assert held(result) == (1, 1)


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


def test_the_summary_is_written_from_the_files_of_this_tree() -> None:
    text = markdown(load_all(), summary.load(DIRECTORY))
    assert (DIRECTORY / main.SUMMARY).read_text(encoding="utf-8") == text, "run scripts/results --write-summary"


def test_no_superseded_run_is_in_this_tree() -> None:
    assert summary.superseded(load_all(), summary.load(DIRECTORY)) == [], "git rm them: history has them"


def test_no_results_is_said() -> None:
    console = Console(record=True, file=io.StringIO())
    show([], console)
    assert NONE_YET in console.export_text()
