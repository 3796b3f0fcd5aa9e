"""Clients of a lane in FAULT wait, bounded in number and time, instead of meeting error 807."""

import os
import signal
from collections.abc import Iterator

import pytest

from fault_injection.sim.script import Script
from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded, Program

POLICY = "max_parked = 3\npark_deadline = 60"
"""Longer than a test takes, so that it decides itself when the waiting ends."""


def running_guard(policy: str) -> Iterator[Guarded]:
    with Guarded(policy=policy) as running:
        running.start()
        running.client().expect("started")
        yield running


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    yield from running_guard(POLICY)


@pytest.fixture
def impatient() -> Iterator[Guarded]:
    yield from running_guard("park_deadline = 1")


def force_fault(guarded: Guarded) -> None:
    """A FAULT with no fault behind it writes no log line: let the guard see it before a client comes."""
    Script(guarded.pipe).force_fault()
    guarded.lane_in("FAULT")


def parked(guarded: Guarded) -> int:
    count: int = guarded.asked("status")["domains"][0]["parked"]
    return count


def end(client: Program) -> tuple[str, object]:
    said = client.expect("connected", "bare", "died")
    return said["event"], said.get("error")


def test_without_the_guard_a_client_meets_807_and_with_it_waits(guarded: Guarded) -> None:
    force_fault(guarded)
    bare = dict(guarded.environment, CUDA_MPS_PIPE_DIRECTORY=str(guarded.pipe))
    guarded.environment, through = bare, guarded.environment
    assert end(guarded.client("--iterations", "1")) == ("died", 807)
    guarded.environment = through
    waiting = guarded.client("--iterations", "1")
    wait_for("parked", lambda: parked(guarded) == 1)
    assert guarded.ctl("status").returncode == 4
    Script(guarded.pipe).clear()
    assert end(waiting) == ("connected", None)
    assert guarded.ctl("status").returncode == 0
    assert parked(guarded) == 0


def test_a_real_fault_is_seen_and_the_late_clients_are_spared(guarded: Guarded) -> None:
    culprit = guarded.client("--fault", "trap", "--after", "0.1")
    assert culprit.expect("died")["error"] == 719
    late = [guarded.client("--iterations", "1") for _ in range(3)]
    assert [end(client)[0] for client in late] == ["connected"] * 3


def test_after_its_deadline_a_client_gets_what_stock_mps_would_give(impatient: Guarded) -> None:
    force_fault(impatient)
    assert end(impatient.client("--iterations", "1")) == ("died", 807)
    assert impatient.metric("mpsguard_parked_clients_total", outcome="deadline") == 1


def test_no_more_than_the_limit_are_parked(guarded: Guarded) -> None:
    force_fault(guarded)
    waiting = [guarded.client("--iterations", "1") for _ in range(3)]
    wait_for("three parked", lambda: parked(guarded) == 3)
    assert end(guarded.client("--iterations", "1")) == ("died", 807)
    assert guarded.metric("mpsguard_parked_clients_total", outcome="too_many") == 1
    Script(guarded.pipe).clear()
    assert [end(client)[0] for client in waiting] == ["connected"] * 3


def test_a_parked_client_that_dies_gives_its_place_back(guarded: Guarded) -> None:
    force_fault(guarded)
    waiting = guarded.client()
    wait_for("parked", lambda: parked(guarded) == 1)
    waiting.process.kill()
    wait_for("place given back", lambda: parked(guarded) == 0)
    assert guarded.metric("mpsguard_parked_clients_total", outcome="left") == 1


def test_driver_535_has_no_status_command_and_is_judged_by_its_log() -> None:
    with Guarded(policy=POLICY) as guarded:
        guarded.pipe.mkdir(parents=True)
        Script(guarded.pipe).driver("535")
        guarded.start()
        innocent = guarded.client()
        innocent.expect("started")
        # As long as its context stands, the server stays in its fault.
        innocent.process.send_signal(signal.SIGSTOP)
        culprit = guarded.client("--fault", "trap", "--after", "0.1")
        assert culprit.expect("died")["error"] == 719
        guarded.lane_in("FAULT")
        innocent.process.send_signal(signal.SIGCONT)
        assert innocent.expect("died")["error"] == 719
        assert end(guarded.client("--iterations", "1")) == ("connected", None)
        guarded.lane_in("ACTIVE")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_the_last_one_of_the_user_with_most_gives_way() -> None:
    with Guarded(policy=POLICY, domain="multiuser = true") as guarded:
        guarded.start()
        guarded.client().expect("started")
        force_fault(guarded)
        kept = [guarded.client("--iterations", "1") for _ in range(2)]
        wait_for("two parked", lambda: parked(guarded) == 2)
        last = guarded.client("--iterations", "1")
        wait_for("three parked", lambda: parked(guarded) == 3)
        others = attack(guarded, "sock, fds = client(); tell('connected', fds=len(fds)); signal.pause()")
        assert end(last) == ("died", 807)
        wait_for("three parked again", lambda: parked(guarded) == 3)
        Script(guarded.pipe).clear()
        assert [end(client)[0] for client in kept] == ["connected"] * 2
        assert others.expect("connected")["fds"] == 1
