"""An extra that is missing: the line names the environment that lacks it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpsguard.cli.extras import how_to_install

ROOT = Path(__file__).parents[3]


def test_the_command_is_that_of_this_interpreter() -> None:
    assert how_to_install("images") == f"{sys.executable} -m pip install 'mpsguard[images]'"


def test_a_packages_own_python_has_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    said = how_to_install("images")
    assert sys.prefix in said
    assert "pip install" not in said


def test_without_its_extra_the_drop_in_says_in_one_line_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "setproctitle.py").write_text("raise ModuleNotFoundError('no', name='setproctitle')\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "mpsguard.dropin.device_plugin", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == f"mps-control-daemon: it needs setproctitle: {how_to_install('device-plugin')}\n"
    assert done.returncode == 1


@pytest.mark.parametrize("program", ["guard", "ctl"])
def test_without_click_one_line_says_what_the_commands_need(tmp_path: Path, program: str) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('no', name='click')\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", f"from mpsguard.cli.{program} import main"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == f"mpsguard: the commands need click: {how_to_install('ctl')}\n"
    assert done.returncode == 1
