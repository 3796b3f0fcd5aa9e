"""The command line: one clear line for every mistake."""

import pytest

from tests.bench.main import NOT_RUN, USAGE, main, select
from tests.bench.results.origin import Gpu


def test_list_names_every_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    for name in ("broker", "clients", "commands", "start_latency", "throughput", "guard_killed", "fault_parking"):
        assert name in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which suite? one of: broker"),
        (["nonsense"], "no suite 'nonsense'; there is: broker"),
        (["broker", "--only", "nonsense"], "no measurement 'nonsense' in broker; there is: clients, commands"),
    ],
)
def test_unknown_names_get_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_an_unknown_option_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["broker", "--nonsense"])
    assert ended.value.code == USAGE
    assert capsys.readouterr().err.count("\n") == 1


def test_only_keeps_the_order_of_the_suite() -> None:
    assert [each.name for each in select("broker", ["throughput", "clients"])] == ["clients", "throughput"]


def test_a_machine_without_a_gpu_is_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.bench.results.origin.gpu", lambda: Gpu(None, None, None))
    assert main(["broker"]) == NOT_RUN
    assert "not run: nvidia-smi names no NVIDIA GPU" in capsys.readouterr().err


def test_a_gpu_without_the_control_daemon_is_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.bench.results.origin.gpu", lambda: Gpu("NVIDIA H200", "580.159.04", "13.0"))
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["broker"]) == NOT_RUN
    assert "not run: nvidia-cuda-mps-control is not on PATH" in capsys.readouterr().err
