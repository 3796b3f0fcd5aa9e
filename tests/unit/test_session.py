"""The process that tests run in does not depend on what its caller ignores, sets or has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import OF_PYTHON

ROOT = Path(__file__).resolve().parents[2]
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1)
BLOCKED = (signal.SIGTERM, signal.SIGUSR2)


def test_signals_are_as_in_a_login_shell() -> None:
    catchable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - OF_PYTHON
    assert {number for number in catchable if signal.getsignal(number) is signal.SIG_IGN} == set()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_umask_environment_and_terminal_are_the_sessions_own() -> None:
    before = os.umask(0o022)
    assert before == 0o022
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    assert not sys.dont_write_bytecode
    assert os.environ["LC_ALL"] == "C.UTF-8"
    assert not os.isatty(0)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_caller_cannot_change_them(workers: str) -> None:
    def caller() -> None:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        os.umask(0o077)

    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers, __file__),
            *("-k", "login_shell or sessions_own"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
            "LC_ALL": "POSIX",
            "COLUMNS": "1000",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        preexec_fn=caller,
        capture_output=True,
        text=True,
        check=False,
        timeout=100.0,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
