"""A lane is ACTIVE only while clients are served, whatever its control daemon answers; and no stranger changes that."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from fault_injection.sim.script import Script
from tests.harness.waiting import wait_for
from tests.hostile.attacker import UID, attack
from tests.integration.guarded import Guarded

PROBES = ("ready", "slurm", "npd")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        running.lane_in("ACTIVE")
        yield running


TRIES = "sock = connect(); introduce(sock, 2); sock.recv(64); tell('done')"
"""A client that is turned away."""

STAYS = "sock = connect(); introduce(sock, 2); sock.recv(64); tell('done'); signal.pause()"

HUNG_UP_ON = """
for kind in (1, 3, 9) * 5:
    sock = connect()
    introduce(sock, kind)
    sock.recv(64)
for _ in range(5):
    sock = connect()
    introduce(sock, 2)
    sock.shutdown(socket.SHUT_WR)
    sock.recv(64)
for word in (b'x', b'OUTUSER\\0', b'y' * 4000) * 3:
    sock = connect()
    introduce(sock, 2)
    try:
        sock.send(word)
        sock.recv(64)
    except OSError:
        pass
tell('done')
"""


def probes(guarded: Guarded) -> list[int]:
    return [guarded.ctl("check", "--for", purpose).returncode for purpose in PROBES]


def turned_away(guarded: Guarded) -> None:
    """A client that gets no server."""
    assert guarded.client("--iterations", "1").expect("connected", "bare", "died")["event"] == "died"


def all_say_failing(guarded: Guarded, words: str) -> None:
    """Every view agrees: lanes, status, metrics, probes, events, the page and top, which show the same report."""
    report = guarded.lane_in("FAILING")
    assert words in report["reason"]
    status = guarded.ctl("status")
    assert status.returncode == 3
    assert "FAILING" in status.stdout
    assert words in status.stdout
    assert probes(guarded) == [1, 1, 1]
    assert guarded.metric("mpsguard_lane_state", state="FAILING") == 1
    doctor = guarded.json("doctor", "--config", str(guarded.config))
    assert [each for each in doctor if each["grade"] == "problem" and "FAILING" in each["text"]]
    assert guarded.metric("mpsguard_lane_state", state="ACTIVE") == 0
    assert [event["data"]["reason"] for event in guarded.events("lane_state") if event["data"]["state"] == "FAILING"]


def test_a_lane_without_clients_is_well(guarded: Guarded) -> None:
    assert guarded.lane()["servers"] == [], "no server is started only to look"
    assert probes(guarded) == [0, 0, 0]


def test_a_server_that_ends_at_every_start(guarded: Guarded) -> None:
    Script(guarded.pipe).fail_server_start()
    turned_away(guarded)
    all_say_failing(guarded, "exited with status 1")
    assert guarded.metric("mpsguard_clients_turned_away_total") == 1
    Script(guarded.pipe).clear()
    # Clients are passed on: the first one that is served says that the lane serves again.
    assert guarded.client("--iterations", "1").expect("connected", "died")["event"] == "connected"
    guarded.lane_in("ACTIVE")
    assert probes(guarded) == [0, 0, 0]


def test_a_server_that_ends_a_moment_after_each_start(guarded: Guarded) -> None:
    """It registers, is ACTIVE, and takes a client each time."""
    # Later than a client starts on a busy machine, and well within the five seconds in which its end counts.
    Script(guarded.pipe).end_servers(after=2.0, status=7)
    for _ in range(2):
        client = guarded.client()
        client.expect("started")
        assert client.expect("died")["error"] == 806
    all_say_failing(guarded, "exited with status 7")
    assert guarded.metric("mpsguard_servers_lost_total") == 2
    assert len(guarded.events("server_lost")) == 2
    Script(guarded.pipe).clear()
    # One that has lived for as long as it takes to be believed.
    guarded.client().expect("started")
    guarded.lane_in("ACTIVE")


def test_a_server_that_is_stopped(guarded: Guarded) -> None:
    guarded.client("--step-ms", "10").expect("started")
    (server,) = guarded.lane_in("ACTIVE")["servers"]
    os.kill(server["process"]["pid"], signal.SIGSTOP)
    try:
        all_say_failing(guarded, "stopped")
    finally:
        os.kill(server["process"]["pid"], signal.SIGCONT)
    guarded.lane_in("ACTIVE")


def test_a_daemon_that_does_not_answer(guarded: Guarded) -> None:
    Script(guarded.pipe).hang("get_server_list")
    all_say_failing(guarded, "not answered")
    Script(guarded.pipe).clear()
    guarded.lane_in("ACTIVE")


def test_reports_do_not_wait_for_one_lane_that_hangs_after_the_other() -> None:
    """Each look takes five seconds; a request has ten."""
    with Guarded(domain="standby = true") as guarded:
        guarded.start()
        guarded.lane_in("ACTIVE")
        scripts = [Script(guarded.run_directory / "lanes" / name / "pipe") for name in ("default-0", "default-1")]
        for script in scripts:
            script.hang("get_server_list")
        assert {lane["state"] for lane in guarded.asked("lanes")["lanes"]} <= {"UNKNOWN", "FAILING"}
        assert {lane["state"] for lane in guarded.asked("lanes")["lanes"]} <= {"UNKNOWN", "FAILING"}
        assert guarded.ctl("status").returncode == 3
        for script in scripts:
            script.clear()
        guarded.lane_in("ACTIVE")


@pytest.mark.root
@ROOT
def test_a_stranger_that_kills_its_own_servers_is_a_doubt_that_drains_nothing(guarded: Guarded) -> None:
    """Its server is its own process without -M, which it may kill."""
    script = Script(guarded.pipe)
    script.fail_server_start(killed=True)
    attack(guarded, TRIES).expect("done")
    report = wait_for("a doubt", lambda: lane if (lane := guarded.lane())["doubt"] else None)
    assert report["state"] == "ACTIVE"
    assert str(UID) in report["doubt"]
    assert probes(guarded) == [0, 0, 0]
    assert guarded.ctl("status").returncode == 3
    assert guarded.events("lane_doubted")
    assert guarded.metric("mpsguard_lane_doubted") == 1
    # Another user that meets the same is the proof.
    attack(guarded, TRIES, uid=UID - 1).expect("done")
    all_say_failing(guarded, "exited with status 0")


@pytest.mark.root
@ROOT
def test_a_stranger_that_stops_its_own_server_is_a_doubt_that_drains_nothing(guarded: Guarded) -> None:
    attack(guarded, STAYS).expect("done")
    (server,) = wait_for("its server", lambda: guarded.lane()["servers"])
    pid = server["process"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        report = wait_for("a doubt", lambda: lane if (lane := guarded.lane())["doubt"] else None)
        assert (report["state"] != "FAILING", str(UID) in report["doubt"]) == (True, True)
        assert probes(guarded) == [0, 0, 0]
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.root
@ROOT
def test_servers_that_end_by_themselves_for_the_only_user_there_is(guarded: Guarded) -> None:
    """As for user 1001 in NVIDIA/k8s-device-plugin #762: one user's word, but its servers' own exits."""
    Script(guarded.pipe).fail_server_start()
    attack(guarded, TRIES, uid=1001).expect("done")
    all_say_failing(guarded, "exited with status 1")


@pytest.mark.root
@ROOT
def test_a_stranger_that_asks_to_be_hung_up_on_proves_nothing() -> None:
    with Guarded(domain="multiuser = true") as guarded:
        guarded.start()
        guarded.client().expect("started")
        attack(guarded, HUNG_UP_ON).expect("done")
        report = guarded.lane()
        assert (report["state"], report["doubt"]) == ("ACTIVE", "")
        assert probes(guarded) == [0, 0, 0]


def test_one_domain_fails_and_the_other_serves() -> None:
    """As where one GPU of two is gone: each domain's lane stands for itself."""
    with Guarded(domain='gpus = ["0"]') as guarded:
        second = f"""
[[domain]]
name = "second"
gpus = ["1"]
pipe_directory = "{guarded.root}/mps2"
control_binary = "{guarded.control}"
simulated = true
"""
        guarded.config.write_text(guarded.config.read_text() + second)
        guarded.start()
        guarded.lane_in("ACTIVE")
        Script(guarded.run_directory / "lanes" / "second-0" / "pipe").fail_server_start()
        guarded.environment["CUDA_MPS_PIPE_DIRECTORY"] = f"{guarded.root}/mps2"
        turned_away(guarded)
        lanes = wait_for("a failing lane", lambda: found if _states(found := guarded.asked("lanes")) else None)
        assert {lane["name"]: lane["state"] for lane in lanes["lanes"]} == {
            "default-0": "ACTIVE",
            "second-0": "FAILING",
        }
        assert probes(guarded) == [1, 1, 1]
        assert "second-0" in guarded.ctl("check", "--for", "ready").stdout


def _states(lanes: dict[str, list[dict[str, str]]]) -> bool:
    return any(lane["state"] == "FAILING" for lane in lanes["lanes"])


def test_a_lane_that_is_held_in_teardown_names_the_client_that_holds_it(guarded: Guarded) -> None:
    held = guarded.client()
    held.expect("started")
    held.process.send_signal(signal.SIGSTOP)
    culprit = guarded.client("--fault", "trap", "--after", "0.1")
    assert culprit.expect("died")["error"] == 719
    report = guarded.lane_in("FAULT")
    report = wait_for("its name", lambda: lane if "not yet left" in (lane := guarded.lane())["reason"] else None)
    assert f"{held.pid} (stopped)" in report["reason"]
    assert f"{held.pid} (stopped)" in guarded.ctl("status").stdout
    held.process.send_signal(signal.SIGCONT)
    guarded.lane_in("ACTIVE")
