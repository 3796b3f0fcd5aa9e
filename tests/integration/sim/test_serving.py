"""Clients and command lines at the guard's public directory, over a simulated lane."""

import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.sim.script import Script
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program
from tests.integration.peer import Peer

pytestmark = pytest.mark.slow(seconds=60, reason="command lines at the guard and at the daemon")

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users' processes")


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running


def test_four_unmodified_clients_run_at_once_and_are_known(guarded: Guarded) -> None:
    clients = [guarded.client("--memory-mib", "1") for _ in range(4)]
    for client in clients:
        assert client.expect("connected", "bare")["mps"] is True
    known = guarded.clients_of(*(client.pid for client in clients))
    for entry in known.values():
        assert entry["uid"] == os.getuid()
        assert "fault_injection.sim.client" in entry["command"]
        assert not entry["adopted"]
    server = guarded.lane()["servers"][0]["process"]["pid"]
    listed = guarded.ui(f"get_client_list {server}").stdout.split()
    assert {int(pid) for pid in listed} == set(known)
    for client in clients:
        client.process.terminate()
    assert [client.wait() for client in clients] == [0] * 4
    wait_for("all clients gone", lambda: not guarded.clients())


def test_what_a_program_was_started_with_is_known(guarded: Guarded) -> None:
    guarded.environment["CUDA_VISIBLE_DEVICES"] = "0\x1b[31m"
    client = guarded.client()
    client.expect("connected")
    assert guarded.clients_of(client.pid)[client.pid]["gpus"] == "0?[31m"


def test_the_command_line_answers_as_it_does_at_the_daemon_itself(guarded: Guarded) -> None:
    guarded.client().expect("connected")
    server = guarded.lane()["servers"][0]["process"]["pid"]
    for command in (
        "get_server_list",
        f"get_server_status {server}",
        f"get_client_list {server}",
        "get_device_client_list",
        "ps",
        "get_default_active_thread_percentage",
        "set_default_active_thread_percentage 40",
        f"set_active_thread_percentage {server} 30",
        f"get_active_thread_percentage {server}",
        "set_default_client_priority 7",
        "no_such_command",
        "terminate_client 1 2",
    ):
        through, direct = guarded.ui(command), guarded.ui(command, pipe_directory=guarded.pipe)
        assert (through.stdout, through.returncode) == (direct.stdout, direct.returncode), command


def test_no_connection_waits_for_a_larger_table_of_descriptors(guarded: Guarded) -> None:
    status = Path(f"/proc/{guarded.guard.pid}/status").read_text().split()
    slots = int(status[status.index("FDSize:") + 1])
    assert slots >= min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536)


def test_an_open_command_line_keeps_no_other_user_out(guarded: Guarded) -> None:
    """The vendor's daemon serves one command line at a time, and drops the second."""
    with Peer(guarded.public, "control_privileged") as sitting:
        sitting.connect_as_command_line()
        for _ in range(2):
            assert sitting.command("get_default_active_thread_percentage") == "100.0"
            assert guarded.ui("get_default_client_priority").stdout == "0\n"
            assert guarded.ctl("status").returncode == 0
        assert sitting.end_commands() == 0


def test_many_command_lines_at_once_are_all_answered(guarded: Guarded) -> None:
    at_once = [
        subprocess.Popen(
            [str(guarded.control)], env=guarded.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(20)
    ]
    for ui in at_once:
        assert ui.communicate("get_default_active_thread_percentage\nps\n", timeout=30)[0].startswith("100.0\n")
        assert ui.returncode == 0


def test_many_commands_in_one_session(guarded: Guarded) -> None:
    said = guarded.ui(*["get_default_active_thread_percentage"] * 200).stdout
    assert said.split() == ["100.0"] * 200


@ROOT
@pytest.mark.root
def test_a_user_without_the_right_is_refused_under_its_own_uid(guarded: Guarded) -> None:
    refused = guarded.ui("set_default_active_thread_percentage 10", user=65534, group=65534)
    assert "65534" in refused.stdout
    assert guarded.ui("get_default_active_thread_percentage").stdout.strip() == "100.0"
    # Nor is anything kept for the next control daemon, whatever the refused value was.
    guarded.ui("set_default_active_thread_percentage 100", user=65534, group=65534)
    guarded.ui("set_default_active_thread_percentage 150", "set_default_client_priority 7")
    kept = guarded.lane()["settings"]
    assert (kept["active_thread_percentage"], kept["client_priority"]) == (None, None)
    assert not guarded.events("lane_setting")


@ROOT
@pytest.mark.root
def test_a_client_of_another_user_waits_for_its_turn_as_in_stock_mps(guarded: Guarded) -> None:
    ours = guarded.client()
    ours.expect("connected")
    theirs = Program(
        ["/usr/bin/python3", "-m", "fault_injection.sim.client", "--iterations", "3"],
        guarded.environment,
        user=65534,
        group=65534,
    )
    try:
        assert theirs.silent()
        ours.process.terminate()
        assert theirs.expect("connected", "bare")["event"] == "connected"
        assert theirs.wait() == 0
    finally:
        theirs.close()


@ROOT
@pytest.mark.root
def test_with_m_users_share_the_server_and_the_private_directory_is_closed() -> None:
    with Guarded(domain="multiuser = true") as guarded:
        guarded.start()
        assert guarded.pipe.stat().st_mode & 0o777 == 0o700
        ours = guarded.client()
        ours.expect("connected")
        theirs = Program(
            ["/usr/bin/python3", "-m", "fault_injection.sim.client"], guarded.environment, user=65534, group=65534
        )
        try:
            theirs.expect("connected")
            known = guarded.clients_of(ours.pid, theirs.pid)
            assert (known[ours.pid]["uid"], known[theirs.pid]["uid"]) == (0, 65534)
            assert len(guarded.lane()["servers"]) == 1
        finally:
            theirs.close()


@ROOT
@pytest.mark.root
def test_a_closed_lane_does_not_close_its_neighbour() -> None:
    with Guarded() as guarded:
        guarded.write_config(domain='gpus = ["0"]')
        with guarded.config.open("a") as config:
            config.write(
                f"""
                [[domain]]
                name = "shared"
                pipe_directory = "{guarded.root}/shared"
                control_binary = "{guarded.control}"
                simulated = true
                gpus = ["1"]
                multiuser = true
                """
            )
        guarded.start()
        lanes = guarded.run_directory / "lanes"
        try:
            assert {report["state"] for report in guarded.json("lanes")["lanes"]} == {"ACTIVE"}
            for directory in (lanes, lanes / "default-0", lanes / "default-0" / "pipe"):
                assert directory.stat().st_mode & 0o777 == 0o710
                assert directory.stat().st_gid == os.getegid()
            assert (lanes / "shared-0").stat().st_mode & 0o777 == 0o700
            theirs = Program(
                ["/usr/bin/python3", "-m", "fault_injection.sim.client", "--iterations", "1"],
                guarded.environment,
                user=65534,
                group=65534,
            )
            assert theirs.expect("connected", "bare", "died")["event"] == "connected"
            theirs.close()
        finally:
            # Told in public: a lane that ends behind the guard's back is started again.
            guarded.ui("quit", pipe_directory=guarded.root / "shared")


def test_terminate_ends_one_client_and_no_other(guarded: Guarded) -> None:
    victim, other = guarded.client(), guarded.client()
    victim.expect("started")
    other.expect("started")
    done = guarded.ctl("terminate", str(victim.pid))
    assert done.returncode == 0, done.stderr
    assert victim.expect("died", "finished")["error"] == 810
    assert other.process.poll() is None
    assert guarded.ctl("terminate", str(os.getpid())).returncode == 1
    assert guarded.ctl("terminate", "0").returncode == 2


def test_without_an_answer_no_client_is_signalled(guarded: Guarded) -> None:
    victim = guarded.client()
    victim.expect("started")
    Script(guarded.pipe).hang("terminate_client")
    assert guarded.ctl("terminate", "--signal", "KILL", str(victim.pid), deadline=5.0).returncode == 1
    assert victim.process.poll() is None
    # The daemon goes on with the command it had: the client dies of that, and of no signal.
    Script(guarded.pipe).clear()
    assert victim.expect("died", "finished")["error"] == 810
    assert victim.wait() == 3


def test_after_the_answer_the_signal_comes_if_asked_for(guarded: Guarded) -> None:
    victim = guarded.program([sys.executable, "-m", "tests.integration.sim.heedless"])
    victim.expect("started")
    outcome = guarded.json("terminate", "--signal", "KILL", str(victim.pid))
    assert outcome["terminated"]
    assert outcome["signalled"]
    assert victim.wait() == -signal.SIGKILL


def test_quit_ends_the_lane_and_then_the_guard(guarded: Guarded) -> None:
    assert guarded.client("--iterations", "1").wait() == 0
    # As long as the guard has not seen that, it is a client's death with its server.
    wait_for("the client's end", lambda: not guarded.clients())
    control = guarded.lane()["control"]["pid"]
    assert guarded.ui("quit").returncode == 0
    assert guarded.guard.wait(30) == 0
    assert not os.path.exists(f"/proc/{control}/root")
    assert guarded.client("--iterations", "1").expect("connected", "bare")["event"] == "bare"
    # A lane that ended as it was told to, without clients, is no incident.
    logged = [json.loads(line)["event"] for line in (guarded.root / "guard.log").read_text().splitlines()]
    assert "domain_ended" in logged
    assert "incident" not in logged


def test_a_second_guard_and_a_stock_daemon_are_kept_out(guarded: Guarded) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "mpsguard.cli.guard", "serve", "--config", str(guarded.config)],
        env=guarded.environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 1
    assert str(guarded.guard.pid) in second.stderr
    stock = subprocess.run([str(guarded.control), "-d"], env=guarded.environment, check=False, capture_output=True)
    assert stock.returncode == 1
    assert guarded.ctl("status").returncode == 0


def test_what_users_find_in_the_public_directory(guarded: Guarded) -> None:
    """Sockets alone can be opened by other users, and no other user can list what is there."""
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in guarded.public.iterdir()}
    assert modes == {
        "control": 0o666,
        "control_privileged": 0o755,
        "control_lock": 0o600,
    }
    assert stat.S_IMODE(guarded.public.stat().st_mode) == 0o711
