"""The scripts that measure, started with a Python that lacks the project's packages."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MEASURING = ("fuzz", "hostile-bench", "takeover-simulation", "triage-bench", "triage-campaign", "vault-bench")


@pytest.mark.parametrize("name", MEASURING)
def test_without_the_packages_it_goes_on_in_the_environment_or_says_what_makes_one(name: str, tmp_path: Path) -> None:
    # A copy, beside which there is no environment.
    for folder in ("fault_injection", "mpsguard", "scripts", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    (tmp_path / "fault_injection" / "__init__.py").touch()
    source = ROOT / "fault_injection" / "own_python.py"
    (tmp_path / "fault_injection" / "own_python.py").write_bytes(source.read_bytes())
    command = [sys.executable, "-S", str(tmp_path / "scripts" / name), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False, env={})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{name}: no package 'msgspec'; `make venv` installs what is needed\n"
    # With one beside it, that is what runs.
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "goes on: $@"\n')
    python.chmod(0o755)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False, env={})
    assert (done.returncode, done.stdout) == (0, f"goes on: {command[2]} --help\n")


@pytest.mark.parametrize("name", MEASURING)
def test_help_measures_nothing(name: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / name), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    assert (done.returncode, done.stdout.startswith(f"usage: {name} ")) == (0, True)
