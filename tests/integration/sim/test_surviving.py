"""The guard's own death and its lane's: no client is hurt by the one, and the other is reported and repaired."""

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from fault_injection.sim.script import Script
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, descriptors, no_more_descriptors

pytestmark = pytest.mark.slow(seconds=150, reason="kills guards and lanes")


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        yield running


def keys(clients: Iterable[dict[str, object]]) -> set[tuple[object, ...]]:
    return {tuple(client["process"].values()) for client in clients}  # type: ignore[attr-defined]  # JSON


def test_a_killed_guard_hurts_no_client_and_the_next_one_adopts_all(guarded: Guarded) -> None:
    guarded.hold_sockets()
    guarded.start()
    clients = [guarded.client() for _ in range(4)]
    for client in clients:
        client.expect("started")
    before, known = guarded.lane(), keys(guarded.clients_of(*(client.pid for client in clients)).values())
    guarded.kill()
    assert guarded.ctl("status").returncode == 5
    fifth = guarded.client("--iterations", "3")
    assert fifth.silent()
    guarded.start()
    after = guarded.lane()
    assert after["adopted"]
    assert after["starts"] == 0
    assert after["control"] == before["control"]
    assert [server["process"] for server in after["servers"]] == [server["process"] for server in before["servers"]]
    assert fifth.expect("connected", "bare")["event"] == "connected"
    assert fifth.wait() == 0
    adopted = [client for client in guarded.clients() if client["adopted"]]
    assert keys(adopted) == known
    assert all(client.process.poll() is None for client in clients)
    assert guarded.ctl("status").returncode == 0


def test_an_adopted_client_is_seen_to_end(guarded: Guarded) -> None:
    guarded.start()
    client = guarded.client()
    client.expect("started")
    guarded.clients_of(client.pid)
    guarded.kill()
    guarded.start()
    assert len(guarded.clients()) == 1
    client.process.kill()
    wait_for("the client's end", lambda: not guarded.clients())


def test_without_held_sockets_there_is_a_hole_and_status_shows_it(guarded: Guarded) -> None:
    guarded.start()
    assert guarded.json("status")["domains"][0]["sockets_held"] is False
    assert any("mpsguard.socket" in note for note in guarded.json("status")["notes"])
    guarded.kill()
    assert guarded.client("--iterations", "1").expect("connected", "bare")["event"] == "bare"
    with Guarded() as held:
        held.hold_sockets()
        held.start()
        assert held.json("status")["domains"][0]["sockets_held"] is True
        assert not any("mpsguard.socket" in note for note in held.json("status")["notes"])


def test_an_orderly_end_leaves_lane_and_clients_alone(guarded: Guarded) -> None:
    guarded.start()
    client = guarded.client()
    client.expect("started")
    control = guarded.lane()["control"]
    assert guarded.stop() == 0
    assert client.process.poll() is None
    guarded.start()
    assert guarded.lane()["control"] == control


def test_a_foreign_daemon_in_the_lane_is_neither_adopted_nor_killed(guarded: Guarded) -> None:
    """A foreign daemon holds the lock: its environment does not say that it is this lane's."""
    guarded.pipe.mkdir(parents=True)
    elsewhere = guarded.root / "elsewhere"
    elsewhere.symlink_to(guarded.pipe)
    assert guarded.ui("x", pipe_directory=elsewhere).returncode != 0
    environment = {**guarded.environment, "CUDA_MPS_PIPE_DIRECTORY": str(elsewhere)}
    subprocess.run([str(guarded.control), "-d"], env=environment, check=True)
    holder = int((guarded.pipe / "nvidia-cuda-mps-control.pid").read_text())
    guarded.start()
    assert guarded.ctl("status").returncode == 3
    assert guarded.lane()["control"] is None
    assert guarded.events("lane_foreign")
    os.kill(holder, 0)
    guarded.ui("quit", pipe_directory=elsewhere)
    guarded.lane_in("ACTIVE")


def test_a_dead_lane_is_started_again_with_its_settings(guarded: Guarded) -> None:
    guarded.write_config(settings="active_thread_percentage = 70")
    guarded.start()
    assert guarded.ui("get_default_active_thread_percentage").stdout == "70.0\n"
    guarded.ui("set_default_active_thread_percentage 50", "set_default_device_pinned_mem_limit 0 2G")
    guarded.ui("set_default_client_priority 1")
    first = guarded.lane()["control"]["pid"]
    # Settings outlive the guard as well.
    guarded.kill()
    guarded.start()
    os.kill(first, signal.SIGKILL)
    wait_for("a new daemon", lambda: (guarded.lane()["control"] or {"pid": first})["pid"] != first)
    guarded.lane_in("ACTIVE")
    assert guarded.ui("get_default_active_thread_percentage").stdout == "50.0\n"
    assert guarded.ui("get_default_device_pinned_mem_limit 0").stdout == "2G\n"
    assert guarded.ui("get_default_client_priority").stdout == "1\n"


def test_a_client_that_comes_while_the_lane_is_dead_is_parked_and_served(guarded: Guarded) -> None:
    guarded.write_config(policy="restart_burst = 1\nrestart_window = 6")
    guarded.start()
    os.kill(guarded.lane()["control"]["pid"], signal.SIGKILL)
    guarded.lane_in("DOWN")
    client = guarded.client("--iterations", "3")
    assert client.expect("connected", "bare")["event"] == "connected"
    assert client.wait() == 0
    assert guarded.metric("mpsguard_parked_clients_total", outcome="ready") >= 1


def test_a_lane_that_dies_during_a_handshake_is_replaced_under_the_client(guarded: Guarded) -> None:
    guarded.start()
    control = guarded.lane()["control"]["pid"]
    Script(guarded.pipe).hang_accept()
    client = guarded.client("--iterations", "3")
    assert client.silent()
    os.kill(control, signal.SIGKILL)
    Script(guarded.pipe).clear()
    assert client.expect("connected", "bare")["event"] == "connected"
    assert client.wait() == 0


def test_flapping_is_limited_and_reported(guarded: Guarded) -> None:
    guarded.write_config(policy="restart_burst = 2\nrestart_window = 600")
    guarded.start()
    for _ in range(2):
        os.kill(guarded.lane_in("ACTIVE")["control"]["pid"], signal.SIGKILL)
        guarded.lane_in("ACTIVE", "DOWN")
    report = wait_for("flapping", lambda: lane if (lane := guarded.lane())["flapping"] else None)
    assert report["state"] == "DOWN"
    assert report["starts"] == 2
    assert guarded.ctl("status").returncode == 3
    assert guarded.events("lane_flapping")


def test_a_control_daemon_that_cannot_start_is_reported_and_the_guard_serves_on(
    guarded: Guarded, tmp_path: Path
) -> None:
    broken = tmp_path / "nvidia-cuda-mps-control"
    broken.write_text("#!/bin/sh\necho no such device >&2\nexit 3\n")
    broken.chmod(0o755)
    guarded.control = broken
    guarded.write_config(policy="restart_burst = 1\nrestart_window = 600\nstart_deadline = 5")
    guarded.start()
    assert guarded.ctl("status").returncode == 3
    assert "no such device" in guarded.events("lane_start_failed")[0]["data"]["detail"]
    # There is no daemon to be told, and nothing is started any more.
    guarded.ctl("mps", "quit")
    assert guarded.guard.wait(30) == 0


def test_a_daemon_that_hangs_makes_the_lane_unknown_and_blocks_no_caller(guarded: Guarded) -> None:
    guarded.write_config(policy="command_deadline = 0.5\ncheck_interval = 0.5")
    guarded.start()
    client = guarded.client()
    client.expect("started")
    guarded.clients_of(client.pid)
    Script(guarded.pipe).hang("get_server_status")
    guarded.lane_in("UNKNOWN")
    assert guarded.ctl("status").returncode == 3
    assert len(guarded.clients()) == 1
    assert guarded.metric("mpsguard_command_timeouts_total") >= 1
    assert client.process.poll() is None
    Script(guarded.pipe).clear()
    # With so short a deadline it may be unknown once more.
    wait_for("a lane that is well", lambda: guarded.ctl("status").returncode == 0)


def test_nothing_leaks_over_deaths_of_lane_guard_and_clients(guarded: Guarded) -> None:
    guarded.write_config(policy="restart_burst = 100\nrestart_window = 1")
    pid = guarded.start()
    guarded.client("--iterations", "1").wait()
    # The guard asks for the server once a client has one, and holds it.
    wait_for("the server is held", lambda: guarded.lane_in("ACTIVE")["servers"])
    before = descriptors(pid)
    for _ in range(5):
        client = guarded.client()
        client.expect("started")
        os.kill(guarded.lane_in("ACTIVE")["control"]["pid"], signal.SIGKILL)
        assert client.expect("died")["error"] == 806
        client.wait()
        guarded.client("--iterations", "1").wait()
        guarded.lane_in("ACTIVE")
    wait_for("all clients gone", lambda: not guarded.clients())
    no_more_descriptors(pid, before)
