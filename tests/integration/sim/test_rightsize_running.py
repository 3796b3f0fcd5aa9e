"""Right-sizing of a session that runs: it gets each share by a live resize, and its own in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.sim.test_resize import Resizable

pytestmark = [
    pytest.mark.slow(seconds=60, reason="resizes a program with a standby several times"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a domain of several users needs root"),
]

UID = str(os.getuid())
SHORT = ("--seconds", "0.5", "--warm-up", "0")


@pytest.fixture
def guarded() -> Iterator[Resizable]:
    with Resizable() as running:
        running.start()
        yield running
        if running.process.runs:
            running.ctl("vault", "release", "--force", UID, "work")


def shares(guarded: Resizable) -> list[float]:
    return [event["data"]["share"] for event in guarded.events("session_resized")]


def test_a_session_is_measured_at_each_share_and_has_its_own_again(guarded: Resizable) -> None:
    program = guarded.run("--class", "batch")
    options = ("--shares", "10,40,80", "--slip", "100", "--repeats", "1", *SHORT)
    done = guarded.ctl("--json", "rightsize", "--running", UID, "work", *options, deadline=60)
    # 3: a busy machine may make any state as late as it likes.
    assert done.returncode in (0, 3), done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["measure"] == "publications"
    # A kernel of a millisecond for each state.
    assert all(seconds >= 0.001 for point in found["points"] for seconds in point["times"])
    assert shares(guarded)[:3] == [10, 40, 80]
    assert shares(guarded)[-1] == 80
    assert program.process.poll() is None


def test_a_session_that_does_too_little_has_its_own_share_again(guarded: Resizable) -> None:
    guarded.run("--class", "batch")
    # 0.1 % takes a thousand states, a tenth of a second has a hundred.
    options = ("--shares", "10,40,70", "--slip", "0.1", "--seconds", "0.1", "--warm-up", "0")
    refused = guarded.ctl("--json", "rightsize", "--running", UID, "work", *options, deadline=60)
    assert refused.returncode == 1
    assert "too few" in json.loads(refused.stdout)["error"]["message"]
    assert shares(guarded) == [10, 80]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_measurement_gives_the_share_back(guarded: Resizable, number: signal.Signals) -> None:
    guarded.run("--class", "batch")
    program = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guarded.run_directory), "--json"]
    options = ("--shares", "10,40,70", "--seconds", "300")
    with subprocess.Popen(
        [*program, "rightsize", "--running", UID, "work", *options], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            wait_for("the first share", lambda: shares(guarded) == [10])
            running.send_signal(number)
            said, _ = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 128 + number, said
    assert json.loads(said)["error"]["exit_code"] == 128 + number
    assert shares(guarded) == [10, 80]


def test_a_share_above_that_of_its_class_is_refused_once(guarded: Resizable) -> None:
    guarded.run("--class", "batch")
    refused = guarded.ctl("--json", "rightsize", "--running", UID, "work", "--shares", "90,95,100", *SHORT, deadline=60)
    assert refused.returncode == 1
    message = json.loads(refused.stdout)["error"]["message"]
    assert "class batch gives" in message
    assert "put back" not in message
    assert shares(guarded) in ([], [80])


def test_a_session_that_is_not_there(guarded: Resizable) -> None:
    refused = guarded.ctl("--json", "rightsize", "--running", UID, "nothing", *SHORT)
    assert refused.returncode == 1
    assert "nothing" in json.loads(refused.stdout)["error"]["message"]
