"""`mpsguard run --standby 1` with what cannot be: one exit code, and nothing is started."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.guard_process import REPOSITORY
from tests.integration.running import NOWHERE

RUN = [sys.executable, "-m", "mpsguard.cli.guard", "run"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--listen", "127.0.0.1:0"), 125),
        (("--give-up", "5"), 125),
        (("--settle", "10"), 125),
        (("--standby", "2"), 125),
        (("--standby", "1", "--listen", "127.0.0.1"), 125),
        (("--standby", "1", "--listen", "127.0.0.1:99999"), 125),
        (("--standby", "1", "--listen", "192.0.2.1:1"), 125),
        (("--standby", "1", "--give-up", "0"), 125),
        (("--standby", "1", "/nonexistent/program"), 127),
        (("--standby", "1", "/etc/passwd"), 126),
    ],
)
def test_what_cannot_be_is_said_at_once(options: tuple[str, ...], code: int) -> None:
    done = subprocess.run(
        [*RUN, *NOWHERE, *options, *([] if options[-1].startswith("/") else ["--", "true"])],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert done.stderr


def test_a_domain_without_a_standby_lane_is_refused(tmp_path: Path) -> None:
    """CUDA would find no daemon there, and run without MPS."""
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(tmp_path / "control"))
        run = [*RUN, "--run-directory", "/nonexistent", "--pipe-directory", str(tmp_path), "--standby", "1"]
        done = subprocess.run([*run, "--", "true"], cwd=REPOSITORY, capture_output=True, timeout=60, check=False)
    assert done.returncode == 125
