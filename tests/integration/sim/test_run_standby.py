"""`mpsguard run --standby 1` over two simulated lanes: a fault, a crash, a planned move, a signal."""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.waiting import wait_for
from tests.integration.guarded import Program
from tests.integration.running import Running
from tests.integration.sim.test_takeover import FailoverPair

pytestmark = pytest.mark.slow(seconds=70, reason="kills programs and their standbys")

DIES_WHEN_PROMOTED = """
import os, time
from mpsguard import client
session = client.join("work")
session.ready()
if os.environ["MPSGUARD_ROLE"] == "standby":
    os._exit(3)
time.sleep(600)
"""
WORKER = [sys.executable, "-m", "tests.integration.sim.worker"]


@pytest.fixture
def pair() -> Iterator[FailoverPair]:
    with FailoverPair() as running:
        running.start()
        yield running


@pytest.fixture
def running(pair: FailoverPair) -> Iterator[Running]:
    """Both at work: the active process has published, and its standby is ready."""
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_MPS_PIPE_DIRECTORY"}
    started = Running(pair.root, ("--config", str(pair.config), "--standby", "1"), WORKER, environment)
    try:
        started.expect("went on")
        pair.ready()
        yield started
    finally:
        if started.process.poll() is None:
            started.process.terminate()
            started.wait()
        started.close()


def lanes(pair: FailoverPair) -> dict[int, str]:
    """The program's processes, and the lane of each."""
    return {client["process"]["pid"]: client["lane"] for client in pair.clients() if "worker" in client["command"]}


def goes_on(running: Running) -> dict[str, Any]:
    """The next that has published something: the promoted one."""
    return running.expect("went on")


def test_each_is_on_its_lane_and_a_fault_is_got_over_again_and_again(pair: FailoverPair, running: Running) -> None:
    assert sorted(lanes(pair).values()) == ["default-0", "default-1"]
    counted = 1
    for active in ("default-1", "default-0"):
        culprit = pair.client("--fault", "trap", "--after", "0.1")
        assert culprit.expect("died")["error"] == 719
        promoted = goes_on(running)
        assert promoted["at"] > counted
        counted = promoted["at"]
        pair.ready()
        wait_for("both on their lanes", lambda: sorted(lanes(pair).values()) == ["default-0", "default-1"])
        assert lanes(pair)[promoted["pid"]] == active
        assert pair.active() == active


def test_a_crash_is_got_over_and_the_next_standby_is_kept_away_from_the_work(
    pair: FailoverPair, running: Running
) -> None:
    first = next(pid for pid, lane in lanes(pair).items() if lane == "default-0")
    os.kill(first, signal.SIGKILL)
    promoted = goes_on(running)
    pair.ready()
    assert lanes(pair)[promoted["pid"]] == "default-1"
    wait_for("both on their lanes", lambda: sorted(lanes(pair).values()) == ["default-0", "default-1"])


def test_a_planned_move_supersedes_the_old_process(pair: FailoverPair, running: Running) -> None:
    before = lanes(pair)
    assert pair.ctl("move").returncode == 0
    promoted = goes_on(running)
    pair.ready()
    assert promoted["pid"] in before
    wait_for("the old one's end", lambda: len(before.keys() & lanes(pair).keys()) == 1)
    assert running.process.poll() is None


def test_the_work_of_both_ends_before_a_signal_reaches_them_and_no_other_client_is_hurt(
    pair: FailoverPair, running: Running
) -> None:
    innocent: Program = pair.client()
    innocent.expect("started")
    pids = set(lanes(pair))
    running.process.terminate()
    assert running.wait() in (3, 4, 128 + signal.SIGTERM)
    told = pair.events("client_terminated")
    assert {event["data"]["pid"] for event in told} <= pids
    assert {event["data"]["answer"] for event in told} == {"0"}
    wait_for("their end", lambda: not lanes(pair))
    assert innocent.process.poll() is None
    assert innocent.silent()


def test_a_death_right_after_a_promotion_is_reported_and_counted_by_the_guard(pair: FailoverPair) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_MPS_PIPE_DIRECTORY"}
    command = [sys.executable, "-c", DIES_WHEN_PROMOTED]
    running = Running(pair.root, ("--config", str(pair.config), "--standby", "1"), command, environment)
    try:
        wait_for("the session", lambda: pair.ctl("vault", "show", str(os.getuid()), "work").returncode == 0)
        pair.ready()
        leases = pair.json("vault", "show", str(os.getuid()), "work")["leases"]
        (candidate,) = [lease["pid"] for lease in leases if lease["role"] == "standby"]
        os.kill(next(lease["pid"] for lease in leases if lease["role"] == "writer"), signal.SIGKILL)
        (event,) = wait_for("the event", lambda: pair.events("writer_died_early"))
        assert event["data"]["pid"] == candidate
        assert event["data"]["in_a_row"] == 1
        assert event["data"]["session"] == f"{os.getuid()}/work"
        assert pair.metric("mpsguard_vault_early_deaths_total") == 1
    finally:
        running.process.terminate()
        running.wait()
        running.close()
