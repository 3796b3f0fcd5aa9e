"""`mpsguard-ctl rightsize` without a guard: wrong usage, what is read of a session, what is printed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from mpsguard.cli import ctl, rightsize
from mpsguard.cli.session import CliSession
from mpsguard.cli.session_rate import Quantity, reading
from mpsguard.cli.share_runs import environment_for
from mpsguard.guard.control_api.messages.vault import SessionSummary, SessionView
from mpsguard.guard.sizing.model import TimeModel
from mpsguard.guard.sizing.procedure import SizingPlan, size
from mpsguard.guard.sizing.rate import CounterReading
from mpsguard.vault.wire.latency_counts import LatencyCounts

PLAN = SizingPlan((10.0, 50.0, 100.0), 0.04, 3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "CMD"),
        (["--shares", "ten", "--", "true"], "list of numbers"),
        (["--shares", "10,100", "--", "true"], "one to check it"),
        (["--shares", "10,10,100", "--", "true"], "one to check it"),
        (["--shares", "0,50,100", "--", "true"], "above 0"),
        (["--shares", "10,50,101", "--", "true"], "above 0"),
        (["--shares", "10,50,nan", "--", "true"], "above 0"),
        (["--slip", "0", "--", "true"], "--slip"),
        (["--repeats", "0", "--", "true"], "--repeats"),
        (["--measure", "power", "--", "true"], "--measure"),
        (["--measure", "requests", "--", "true"], "--session"),
        (["--measure", "run-time", "--session", "work", "--", "true"], "--session"),
        (["--session", "work", "--seconds", "9", "--warm-up", "1", "--limit", "10", "--", "true"], "--limit"),
        (["--running", "0", "work", "--", "true"], "--running"),
        (["--running", "0", "work", "--session", "work"], "--session"),
        (["--running", "0", "work", "--measure", "run-time"], "--measure"),
        (["--running", "a-name", "work"], "--running"),
        (["--output-svg", "/nonexistent/plot.svg", "--", "true"], "/nonexistent"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(ctl.main, ["--run-directory", "/nonexistent", "rightsize", *arguments])
    assert done.exit_code == 2
    assert says in done.output


def test_without_a_guard_nothing_is_run() -> None:
    done = CliRunner().invoke(ctl.main, ["--run-directory", "/nonexistent", "--json", "rightsize", "--", "true"])
    assert done.exit_code == 5
    assert "no guard" in json.loads(done.output)["error"]["message"]


def seen(*, writer: int | None = 77, sequence: int = 5, latency: LatencyCounts | None = None) -> SessionView:
    summary = SessionSummary(0, "work", 3, writer, 0, 0, 0, 0, None)
    return SessionView(summary, (), (), sequence, 0, latency)


def test_published_states_are_counted() -> None:
    assert reading(seen(), Quantity.PUBLICATIONS, 2.0) == CounterReading(2.0, 3, 5)
    assert reading(seen(sequence=0), Quantity.PUBLICATIONS, 2.0) is None
    assert reading(seen(writer=None), Quantity.PUBLICATIONS, 2.0) is None


def test_marked_requests_are_counted_with_their_time() -> None:
    marked = LatencyCounts((0, 3, 4), 0.7)
    assert reading(seen(latency=marked), Quantity.REQUESTS, 2.0) == CounterReading(2.0, 3, 7, 0.7)
    for nothing in (seen(latency=LatencyCounts((0, 0), 0.0)), seen()):
        assert reading(nothing, Quantity.REQUESTS, 2.0) is None


def test_a_program_keeps_the_directory_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps/batch")
    assert environment_for("/run/mps", "/run/guard")["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps/batch"
    assert environment_for("/run/mp", "/run/guard")["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mp"
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    made = environment_for("/run/mps", "/run/guard")
    assert made["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps"
    assert made["MPSGUARD_VAULT"].startswith("/run/guard/")


def shown(capsys: pytest.CaptureFixture[str], law: Any, plan: SizingPlan = PLAN, *, as_json: bool = False) -> str:
    session = CliSession("/nonexistent", as_json, 1.0)
    rightsize.show(session, size(law, plan), Quantity.RUN_TIME, 2)
    return capsys.readouterr().out


def test_the_table_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, TimeModel(123.4, 987.6).seconds).splitlines()
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("law", "says"),
    [
        (TimeModel(0.1, 0.9).seconds, "72 % is enough"),
        (TimeModel(0.0, 1.0).seconds, "10 % is enough"),
        (lambda share: 1 + share / 100, "no share found"),
        (lambda share: 1.0 if share == 100 else 10 / share + 1.2, "100 % is needed"),
    ],
)
def test_the_last_line_is_the_conclusion(capsys: pytest.CaptureFixture[str], law: Any, says: str) -> None:
    assert shown(capsys, law).splitlines()[-1].startswith(says)


def test_times_that_are_not_alike_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    turns = iter((1.0, 0.8, 1.2))
    said = shown(capsys, lambda share: next(turns, 1.0) if share == 100 else 0.1 * 100 / share + 0.9)
    assert "--repeats" in said


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(shown(capsys, TimeModel(0.1, 0.9).seconds, as_json=True))
    assert (document["share"], document["freed"], document["problem"]) == (72, 28, None)
    assert document["model"] == pytest.approx({"m": 0.1, "b": 0.9})
    assert document["other_clients"] == 2
    assert [point["share"] for point in document["points"]] == [10, 50, 72, 100]
    assert {"purpose", "times", "seconds", "predicted", "error", "slip"} <= set(document["points"][0])
