"""Probes as Kubernetes, Slurm and node-problem-detector ask: by command and by HTTP, of a guard in every state."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.free_port import free_port
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded

CTL = (sys.executable, "-m", "mpsguard.cli.ctl")
PURPOSES = ("live", "ready", "slurm", "npd")


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def guarded(port: int) -> Iterator[Guarded]:
    with Guarded() as running:
        running.config.write_text(running.config.read_text().replace('"off"', f'"127.0.0.1:{port}"'))
        running.start()
        wait_for("the address", lambda: running.events("http_served"))
        yield running


def check(guarded: Guarded, purpose: str, deadline: float = 10.0) -> tuple[int, str]:
    """The exit status and the one line."""
    done = guarded.ctl("check", "--for", purpose, deadline=deadline)
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert len(line) <= 80
    return done.returncode, line


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_guard_that_serves_is_a_yes_to_all(guarded: Guarded, port: int) -> None:
    guarded.lane_in("ACTIVE")
    assert {check(guarded, purpose)[0] for purpose in PURPOSES} == {0}
    assert get(port, "/livez")[0] == 200
    assert get(port, "/readyz")[0] == 200
    assert "mpsguard_lane_state" in get(port, "/metrics")[1]


def test_other_paths_and_methods_are_refused(guarded: Guarded, port: int) -> None:
    assert get(port, "/favicon.ico")[0] == 404
    assert get(port, "/livez/x")[0] == 404
    assert get(port, "/metrics", "POST")[0] == 405
    assert get(port, "/readyz", "HEAD") == (200, "")


def test_a_guard_that_hangs_is_dead_to_every_probe(guarded: Guarded) -> None:
    os.kill(guarded.guard.pid, signal.SIGSTOP)
    try:
        assert {check(guarded, purpose, deadline=1)[0] for purpose in PURPOSES} == {1}
    finally:
        os.kill(guarded.guard.pid, signal.SIGCONT)


def test_no_guard_is_a_no_in_one_line() -> None:
    with Guarded() as unserved:
        for purpose in PURPOSES:
            code, line = check(unserved, purpose, deadline=1)
            assert (code, bool(line)) == (1, True)


def test_slurm_waits_for_a_guard_that_is_being_restarted() -> None:
    with Guarded() as running:
        asking = subprocess.Popen(
            [*CTL, "--run-directory", str(running.run_directory), "--deadline", "30", "check", "--for=slurm"],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
        )
        running.start()
        assert asking.communicate(timeout=60)[0].startswith(b"ok")
        assert asking.returncode == 0


def test_a_lane_that_is_down_is_not_ready_and_drains_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "nvidia-cuda-mps-control"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    # One start and no other one: while it is tried again, the lane is not down but INITIALIZING.
    with Guarded(broken, policy="start_deadline = 1.0\nrestart_burst = 1\nrestart_window = 3600.0\n") as running:
        running.start()
        wait_for("a lane that stays down", lambda: (lane := running.lane())["flapping"] and lane["state"] == "DOWN")
        assert [check(running, purpose)[0] for purpose in PURPOSES] == [0, 1, 0, 0]


def test_an_address_in_use_keeps_no_guard_from_serving(port: int, guarded: Guarded) -> None:
    with Guarded() as second:
        second.config.write_text(second.config.read_text().replace('"off"', f'"127.0.0.1:{port}"'))
        second.start()
        wait_for("the event", lambda: second.events("http_not_served"))
        assert any(str(port) in note for note in second.json("status")["notes"])
        assert check(second, "ready")[0] == 0
