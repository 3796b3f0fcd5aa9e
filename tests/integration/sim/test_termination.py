"""`mpsguard-ctl terminate` through the whole guard, over the simulated stack: its signals, and when it sends none."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fault_injection.sim.script import Script
from tests.integration.guarded import Guarded, descriptors, no_more_descriptors


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running


def test_a_client_that_does_not_end_is_killed_after_its_grace_and_no_other_is_hurt(guarded: Guarded) -> None:
    victim, other = guarded.program([sys.executable, "-m", "tests.integration.sim.heedless"]), guarded.client()
    victim.expect("started")
    other.expect("started")
    outcome = guarded.json("terminate", "--signal", "TERM", "--grace", "0.2", str(victim.pid))
    assert (outcome["signals"], outcome["ended"]) == (["SIGTERM", "SIGKILL"], True)
    assert victim.wait() == -signal.SIGKILL
    told = guarded.events("client_terminated")[-1]["data"]
    assert (told["pid"], told["signals"], told["ended"]) == (victim.pid, ["SIGTERM", "SIGKILL"], True)
    assert other.process.poll() is None
    assert other.silent()


def test_a_stopped_client_that_is_to_end_is_killed_and_no_other_waits(guarded: Guarded) -> None:
    victim, other = guarded.client(), guarded.client()
    victim.expect("started")
    other.expect("started")
    victim.process.send_signal(signal.SIGSTOP)
    refused = json.loads(guarded.ctl("--json", "terminate", "--signal", "TERM", str(victim.pid)).stdout)
    assert (refused["terminated"], refused["work"], refused["signals"]) == (False, "stopped", [])
    outcome = guarded.json("terminate", "--signal", "TERM", "--grace", "60", str(victim.pid))
    assert (outcome["terminated"], outcome["signals"], outcome["ended"]) == (True, ["SIGKILL"], True)
    assert victim.wait() == -signal.SIGKILL
    assert not guarded.events("command_timeout")
    assert other.process.poll() is None
    assert other.silent()


def test_force_signals_where_the_daemon_hangs(guarded: Guarded) -> None:
    victim = guarded.client()
    victim.expect("started")
    Script(guarded.pipe).hang("terminate_client")
    outcome = guarded.json("terminate", "--signal", "KILL", "--force", str(victim.pid), deadline=1.0)
    assert (outcome["terminated"], outcome["work"], outcome["signals"]) == (False, "unknown", ["SIGKILL"])
    assert victim.wait() == -signal.SIGKILL
    Script(guarded.pipe).clear()


def test_a_daemon_that_hangs_in_its_list_costs_the_deadline_and_no_client_is_signalled(guarded: Guarded) -> None:
    victim = guarded.client()
    victim.expect("started")
    Script(guarded.pipe).hang("get_client_list")
    outcome = guarded.json("terminate", "--signal", "KILL", str(victim.pid), deadline=1.0)
    assert (outcome["work"], outcome["signals"]) == ("unknown", [])
    assert victim.process.poll() is None
    Script(guarded.pipe).clear()


def test_a_process_that_is_no_client_is_never_signalled_even_with_force(guarded: Guarded) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            done = guarded.ctl("terminate", "--signal", "KILL", "--force", str(stranger.pid))
            assert done.returncode == 1
            assert stranger.poll() is None
        finally:
            stranger.kill()


@pytest.mark.parametrize("arguments", [("--force",), ("--grace", "1"), ("--signal", "KILL", "--grace", "-1")])
def test_what_makes_no_sense_is_refused(guarded: Guarded, arguments: tuple[str, ...]) -> None:
    assert guarded.ctl("terminate", *arguments, str(os.getpid())).returncode == 2


def test_no_descriptor_stays_open(guarded: Guarded) -> None:
    def one_round() -> None:
        client = guarded.client()
        client.expect("started")
        assert guarded.json("terminate", "--signal", "TERM", "--grace", "5", str(client.pid))["ended"]
        client.wait()
        guarded.ctl("terminate", str(client.pid))
        assert guarded.clients() == []

    one_round()
    before = descriptors(guarded.guard.pid)
    for _ in range(3):
        one_round()
    no_more_descriptors(guarded.guard.pid, before)
