"""`mpsguard-ctl rightsize` against a guard on the simulated stack; the commands are real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.guarded import Guarded
from tests.integration.sim.stopped_readers import stopped_readers

pytestmark = pytest.mark.slow(seconds=30, reason="runs commands at several shares")

CLIENT = [sys.executable, "-m", "fault_injection.sim.client"]
SIZED = [sys.executable, "-m", "tests.integration.sim.sized"]
MARKING = [sys.executable, "-m", "tests.integration.sim.marking"]
WORKER = [sys.executable, "-m", "tests.integration.sim.worker"]
SHORT = ("--seconds", "0.5", "--warm-up", "0")
WAITS = """
import os, subprocess, sys
from pathlib import Path
below = subprocess.Popen(["sleep", "600"], start_new_session=True)
Path(sys.argv[1]).write_text(f"{os.getpid()} {below.pid}\\n")
below.wait()
"""
"""A command with a process of its own session below it; it says which they are."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running


def rightsize(guarded: Guarded, *arguments: str, as_json: bool = True) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guarded.run_directory)]
    program += ["--json"] if as_json else []
    return subprocess.run(
        [*program, "rightsize", *arguments],
        cwd=REPOSITORY,
        env=guarded.environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


def refusal(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    assert done.returncode == code, done.stdout + done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == code
    message: str = error["message"]
    return message


def test_a_command_is_sized_by_its_run_time(guarded: Guarded, tmp_path: Path) -> None:
    runs, plot = tmp_path / "runs", tmp_path / "plot.svg"
    done = rightsize(
        guarded, "--repeats", "1", "--slip", "60", "--output-svg", str(plot), "--", *SIZED, "0.3", "0.3", str(runs)
    )
    # 3: a busy machine may make any run as long as it likes.
    assert done.returncode in (0, 3), done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["problem"] is None) == (found["share"] is not None) == (done.returncode == 0)
    points = {point["share"]: point for point in found["points"]}
    assert set(points) >= {10, 50, 100}
    for share, point in points.items():
        # A sleep is never shorter than asked for.
        assert all(seconds >= 0.3 * 100 / share + 0.3 for seconds in point["times"])
    if found["share"] is not None:
        assert points[found["share"]]["slip"] <= 0.6
    # Each share was given as often as it was measured; the largest once more, unmeasured, and beside each other one.
    given = Counter(float(line) for line in runs.read_text().split())
    beside = len(points) - 3
    assert given == {share: 1 + (share == 100) * (1 + beside) for share in points}
    assert "at work" in done.stderr
    assert ET.fromstring(plot.read_text(encoding="utf-8")).tag.endswith("svg")


def test_people_get_a_table_and_a_conclusion(guarded: Guarded) -> None:
    done = rightsize(
        guarded, "--repeats", "1", "--slip", "100", "--warm-up", "0", "--", *SIZED, "0.01", "0.5", as_json=False
    )
    assert done.returncode in (0, 3), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["SHARE", "FOR", "MEASURED", "SPREAD", "PREDICTED", "ERROR", "SLIP"]
    assert "%" in lines[-1] or "no share" in lines[-1]


def test_a_session_is_sized_by_the_rate_of_its_states(guarded: Guarded) -> None:
    done = rightsize(
        guarded,
        *("--session", "work", *SHORT, "--repeats", "1", "--slip", "100"),
        *("--", *WORKER, "work"),
    )
    assert done.returncode in (0, 3), done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["measure"] == "publications"
    # A kernel of a millisecond for each state.
    assert all(seconds >= 0.001 for point in found["points"] for seconds in point["times"])
    wait_for("the worker has ended", lambda: not guarded.clients())


def test_a_session_is_sized_by_the_requests_that_it_marks(guarded: Guarded) -> None:
    """The one quantity that no load of the machine changes: the whole of it can be checked."""
    done = rightsize(
        guarded,
        *("--session", "served", "--measure", "requests", "--seconds", "2", "--warm-up", "0", "--repeats", "2"),
        *("--", *MARKING, "served", "0.1", "0.9"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["measure"], found["share"], found["freed"]) == ("requests", 72, 28)
    assert found["model"] == pytest.approx({"m": 0.1, "b": 0.9}, rel=1e-3)
    assert found["r_squared"] > 0.999
    assert all(abs(point["error"]) < 1e-3 for point in found["points"])
    assert found["slip"] == pytest.approx(0.1 / 0.72 + 0.9 - 1, abs=1e-3)


def test_a_command_that_fails_is_named_with_its_exit_code(guarded: Guarded) -> None:
    said = refusal(rightsize(guarded, "--", "sh", "-c", "exit 7"))
    assert "exit code 7" in said
    assert "100 %" in said


def test_a_command_that_is_not_there(guarded: Guarded) -> None:
    assert "/nonexistent/program" in refusal(rightsize(guarded, "--", "/nonexistent/program"))


def test_a_command_that_is_no_client_cannot_be_sized(guarded: Guarded) -> None:
    assert "no client of this guard" in refusal(rightsize(guarded, "--", "true"))


def test_a_command_that_is_too_short_cannot_be_sized(guarded: Guarded) -> None:
    # 0.1 % of less than ten seconds cannot be told from chance.
    assert "too short" in refusal(rightsize(guarded, "--slip", "0.1", "--", *CLIENT, "--iterations", "1"))


def test_a_command_that_is_over_before_the_guard_has_read_of_it_is_its_client(guarded: Guarded) -> None:
    with stopped_readers(guarded.guard.pid):
        assert "too short" in refusal(rightsize(guarded, "--slip", "0.1", "--", *CLIENT, "--iterations", "1"))


def test_a_session_that_publishes_nothing_cannot_be_sized(guarded: Guarded) -> None:
    said = refusal(rightsize(guarded, "--session", "nothing", *SHORT, "--limit", "2", "--", *CLIENT))
    assert "'nothing'" in said
    assert "--limit" in said
    wait_for("the client has ended", lambda: not guarded.clients())


def test_a_session_that_ends_before_it_was_watched(guarded: Guarded) -> None:
    said = refusal(rightsize(guarded, "--session", "nothing", "--", *CLIENT, "--iterations", "1"))
    assert "before its session 'nothing'" in said


def test_a_lane_that_gives_less_is_told(guarded: Guarded) -> None:
    with Guarded(settings="active_thread_percentage = 60") as less:
        less.start()
        assert "60 % at most" in refusal(rightsize(less, "--", *CLIENT, "--iterations", "1"), 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="a domain with classes needs root")
def test_a_class_that_gives_less_is_told(guarded: Guarded) -> None:
    domain = 'multiuser = true\n[[domain.class]]\nname = "rest"\ndefault = true\nsm_share = 70\n'
    with Guarded(domain=domain) as classed:
        classed.start()
        said = refusal(rightsize(classed, "--", *CLIENT, "--iterations", "1"))
        assert "'rest' gives 70 % at most" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_behind(guarded: Guarded, tmp_path: Path, number: signal.Signals) -> None:
    file, pids = tmp_path / "pids", list[int]()
    program = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guarded.run_directory)]
    with subprocess.Popen(
        [*program, "rightsize", "--", sys.executable, "-c", WAITS, str(file)],
        cwd=REPOSITORY,
        env=guarded.environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            wait_for("the command runs", lambda: file.exists() and file.read_text().endswith("\n"))
            pids = [int(pid) for pid in file.read_text().split()]
            running.send_signal(number)
            running.wait(60)
            left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        finally:
            running.kill()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        said = running.communicate(timeout=60)[1]
    assert running.returncode == 128 + number, said
    assert f"interrupted by signal {number.value}" in said
    assert left == []
