"""What doctor shows of other processes."""

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.cli import process_view
from tests.harness.guard_process import REPOSITORY
from tests.harness.leftovers import end_all

SIMULATED = REPOSITORY / "fault_injection" / "sim" / "bin" / "nvidia-cuda-mps-control"
pytestmark = pytest.mark.slow(seconds=3, reason="starts a simulated control daemon")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    pipe, log = tmp_path / "pipe", tmp_path / "log"
    pipe.mkdir()
    log.mkdir()
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
    subprocess.run([str(SIMULATED), "-d"], env=environment, check=True, timeout=30)
    yield pipe
    assert end_all(tmp_path)


def test_a_control_daemon_is_found_with_its_directory_and_its_user(daemon: Path) -> None:
    found = [each for each in process_view.control_daemons() if each.pipe_directory == daemon]
    assert [each.user for each in found] == [pwd.getpwuid(os.geteuid()).pw_name]


def test_what_only_names_the_program_is_no_control_daemon() -> None:
    # Its first word is another program's, and so is that of a command line that talks to a daemon.
    sleeper = [sys.executable, "-c", "import sys; sys.stdin.read()", "-d", str(SIMULATED)]
    with subprocess.Popen(sleeper, stdin=subprocess.PIPE) as process:
        assert process.pid not in {each.pid for each in process_view.control_daemons()}


def test_a_process_is_described_in_one_printable_line() -> None:
    program = [sys.executable, "-c", "import sys; sys.stdin.read()", "one\ntwo\x1b[31m", "x" * 300]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        described = process_view.describe(process.pid)
    assert described.startswith(f"process {process.pid} (")
    assert f"user {pwd.getpwuid(os.geteuid()).pw_name}" in described
    assert described.isprintable()
    assert len(described) < 200


def test_a_process_that_is_gone_is_its_pid() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert process_view.describe(process.pid) == f"process {process.pid}"
