"""An extra that is missing: the line names the environment that lacks it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpsguard.linux.extras import how_to_install, page

ROOT = Path(__file__).parents[3]


def test_the_command_is_that_of_this_interpreter() -> None:
    assert how_to_install("images") == f"{sys.executable} -m pip install 'mpsguard[images]'"


def test_a_packages_own_python_has_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    said = how_to_install("images")
    assert sys.prefix in said
    assert "pip install" not in said


def test_a_page_is_named_where_the_program_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "docs/start/install.md"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    there = tmp_path / "share" / "doc" / "mpsguard" / name
    assert page(name) != str(there)
    there.parent.mkdir(parents=True)
    there.touch()
    assert page(name) == str(there)
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    assert str(there) in how_to_install("images")


@pytest.mark.parametrize(
    ("command", "missing", "says", "extra"),
    [
        ("mpsguard.cli.guard serve", "structlog", "mpsguard: serve needs", "daemon"),
        ("mpsguard.cli.guard check-config --config x", "structlog", "mpsguard: check-config needs", "daemon"),
        ("mpsguard.cli.guard kubernetes-reporter", "structlog", "mpsguard: kubernetes-reporter needs", "kubernetes"),
        ("mpsguard.cli.guard pool --host-memory 1M", "prometheus_client", "mpsguard pool: it needs", "images"),
        ("mpsguard.guard.dropin.device_plugin --help", "setproctitle", "mps-control-daemon: it needs", "device-plugin"),
        ("mpsguard.guard.dropin.control_program -d", "tomli_w", "a guard needs", "daemon"),
    ],
)
def test_without_its_extra_a_command_says_in_one_line_what_it_needs(
    tmp_path: Path, command: str, missing: str, says: str, extra: str
) -> None:
    done = _run_without(tmp_path, missing, *command.split())
    assert done.stderr == f"{says} {missing}: {how_to_install(extra)}\n"
    assert done.returncode == 1


def test_without_the_daemons_packages_there_is_help(tmp_path: Path) -> None:
    done = _run_without(tmp_path, "structlog", "mpsguard.cli.guard", "--help")
    assert "serve                Not available: serve needs structlog" in done.stdout
    assert done.returncode == 0


def _run_without(tmp_path: Path, missing: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name='{missing}')\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps")}
    command = [sys.executable, "-m", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("program", ["guard", "ctl"])
def test_without_click_one_line_says_what_the_commands_need(tmp_path: Path, program: str) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('no', name='click')\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", f"from mpsguard.cli.{program} import main"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == f"mpsguard: the commands need click: {how_to_install('ctl')}\n"
    assert done.returncode == 1
