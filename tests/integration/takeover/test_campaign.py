"""Takeovers in simulation, hit at random: 75 schedules; `make soak` has the thousand."""

import subprocess
import sys

import pytest

from tests.harness.guard_process import REPOSITORY

SCHEDULES = 75


@pytest.mark.slow(seconds=90, reason="75 takeovers")
def test_no_client_notices_anything_but_time() -> None:
    script = REPOSITORY / "scripts" / "takeover-simulation"
    done = subprocess.run(
        [sys.executable, str(script), "--schedules", str(SCHEDULES), "--seed", "1", "--jobs", "1"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
