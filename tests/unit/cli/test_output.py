"""Output that cannot be written, and files that cannot be looked at: one line, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, output: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mpsguard.cli.ctl", *arguments]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["doctor"], ["doctor", "--json"]], ids=" ".join)
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(*arguments, output=full.fileno())
    assert done.stderr == "mpsguard-ctl: standard output: No space left on device\n"
    assert done.returncode == 1


def test_a_reader_that_is_gone_is_no_error_to_tell() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run("doctor", "--json", output=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_path_that_no_command_expects_is_named(tmp_path: Path) -> None:
    plot = tmp_path / ("x" * 300) / "plot.svg"
    done = run("rightsize", "--output-svg", str(plot), "--", "true", output=subprocess.DEVNULL)
    assert done.stderr == f"mpsguard-ctl: {plot.parent}: File name too long\n"
    assert done.returncode == 1
