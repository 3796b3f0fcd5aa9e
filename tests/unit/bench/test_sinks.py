"""kmod-suite hardware: where it refuses to run, and what it makes of the programs' answers. No GPU is asked here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from kmod_patch.loaded import Loaded
from tests.bench.core.errors import NotRunError
from tests.bench.core.events import Event, Outcome
from tests.bench.core.programs import CUDA
from tests.bench.kmod import suite
from tests.bench.kmod.sinks import QUESTIONS, objection, parameters, refusal
from tests.unit.strict_nvcc import compiles

ANSWER = {"value": 0, "intact": True}
FINISHED = {"rounds": 1, "exact": True}


def outcome(status: int = 0, **events: Mapping[str, object]) -> Outcome:
    """A client that said this."""
    return Outcome("client", 1, status, [Event(name, 1, 0.0, 0.0, members) for name, members in events.items()], [])


GOOD = outcome(answer=ANSWER, finished=FINISHED)
INNOCENT = outcome(finished=FINISHED)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Loaded("not loaded"), "nvidia-uvm is not loaded; this needs ours: mpsguard-kmod dkms TREE"),
        (Loaded("stock", "580.1"), "the stock nvidia-uvm of driver 580.1 is loaded"),
        (Loaded("ours", "580.1", "580.1", "1.0", {"uvm_fault_isolation": "0"}), "this needs uvm_fault_isolation=1"),
    ],
)
def test_a_machine_that_cannot_answer_is_refused(found: Loaded, said: str) -> None:
    assert said in str(refusal(found))


def test_ours_is_asked() -> None:
    assert refusal(Loaded("ours", "580.1", "580.1", "1.0", {"uvm_fault_isolation": "1"})) is None


@pytest.mark.skipif(Path("/sys/module/nvidia_uvm").exists(), reason="a driver is loaded here")
def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["hardware"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kmod-suite: hardware: nvidia-uvm is not loaded; this needs ours")


def test_a_sink_that_absorbs() -> None:
    assert objection([GOOD, GOOD], INNOCENT) == ""


@pytest.mark.parametrize(
    ("culprit", "innocent"),
    [
        (outcome(3, died={"code": 700, "name": "cudaErrorIllegalAddress"}), INNOCENT),
        (outcome(answer={"value": 5, "intact": True}, finished=FINISHED), INNOCENT),
        (outcome(answer={"value": 0, "intact": False}, finished=FINISHED), INNOCENT),
        (outcome(answer=ANSWER, finished={"rounds": 1, "exact": False}), INNOCENT),
        (outcome(finished=FINISHED), INNOCENT),
        (GOOD, outcome(3, died={"code": 700, "name": "cudaErrorIllegalAddress"})),
        (GOOD, outcome(finished={"rounds": 1, "exact": False})),
    ],
)
def test_anything_else_is_told(culprit: Outcome, innocent: Outcome) -> None:
    assert "client" in objection([culprit], innocent)


def test_parameters_are_put_back(tmp_path: Path) -> None:
    (tmp_path / "signal").write_text("7\n")
    with parameters({"signal": "0", "unknown": "1"}, tmp_path):
        assert (tmp_path / "signal").read_text() == "0"
    assert (tmp_path / "signal").read_text() == "7\n"
    assert not (tmp_path / "unknown").exists()


def test_parameters_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "signal").write_text("7\n")

    def refuse(path: Path, text: str) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(NotRunError, match="needs root"), parameters({"signal": "0"}, tmp_path):
        pass


def test_every_question_has_a_program() -> None:
    offered = re.findall(r'^    \{"([\w-]+)", ', (CUDA / "sinks.cu").read_text(), re.MULTILINE)
    asked = {name for question in QUESTIONS for name in question.programs}
    assert {*asked, "innocent"} == set(offered)


def test_the_program_compiles_without_a_warning() -> None:
    compiles("sinks.cu")
