"""What starts, replaces and ends the servers, and what their clients see of it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fault_injection.sim.stack import SimulatedStack, eventually, gone

if TYPE_CHECKING:
    from collections.abc import Iterator


def uid_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def ready_server(stack: SimulatedStack) -> int:
    assert eventually(
        lambda: any(stack.command(f"get_server_status {pid}") == ["ACTIVE"] for pid in stack.server_pids())
    )
    return stack.server_pids()[0]


def test_first_client_starts_the_server_and_it_stays(stack: SimulatedStack) -> None:
    assert stack.server_pids() == []
    assert stack.busy_client("--iterations", "3").finish() == 0
    (server,) = stack.server_pids()
    assert stack.busy_client("--iterations", "3").finish() == 0
    assert stack.server_pids() == [server]


def test_start_server(stack: SimulatedStack) -> None:
    stack.command(f"start_server -uid {os.getuid()}")
    assert uid_of(ready_server(stack)) == os.getuid()


def test_killed_server_takes_its_clients_and_is_replaced(stack: SimulatedStack) -> None:
    clients = [stack.busy_client() for _ in range(2)]
    (server,) = stack.server_pids()
    os.kill(server, signal.SIGKILL)
    assert [(client.finish(), client.error) for client in clients] == [(3, 806), (3, 806)]
    assert stack.busy_client("--iterations", "1").finish() == 0
    assert stack.server_pids() != [server]


def test_a_killed_daemon_takes_all_clients_and_newcomers_run_bare(stack: SimulatedStack) -> None:
    client = stack.busy_client()
    (server,) = stack.server_pids()
    os.kill(stack.daemon_pid(), signal.SIGKILL)
    assert (client.finish(), client.error) == (3, 806)
    assert gone(server)
    late = stack.client("--iterations", "1")
    assert late.wait_for("bare")["mps"] is False
    assert late.finish() == 0


def test_daemon_can_be_started_again_after_a_crash(stack: SimulatedStack) -> None:
    first = stack.daemon_pid()
    os.kill(first, signal.SIGKILL)
    assert gone(first)
    assert stack.start().daemon_pid() != first
    assert stack.busy_client("--iterations", "1").finish() == 0


def test_server_that_cannot_start_is_tried_six_times(stack: SimulatedStack) -> None:
    stack.script.fail_server_start()
    client = stack.client("--iterations", "1")
    assert (client.finish(), client.error) == (3, 806)
    log = stack.logs / "control.log"
    assert eventually(lambda: log.read_text().count("exited with status 1") >= 6)
    assert log.read_text().count("exited with status 1") == 6
    stack.script.clear()
    assert stack.busy_client("--iterations", "1").finish() == 0


def test_slow_server_start_holds_its_client(stack: SimulatedStack) -> None:
    stack.script.delay_server_start(0.4)
    began = time.time()
    client = stack.client("--iterations", "1")
    born = client.wait_for("connected")["t"]
    assert client.finish() == 0
    assert born - began >= 0.4


def test_shutdown_server_waits_for_clients_unless_forced(stack: SimulatedStack) -> None:
    client = stack.busy_client()
    (server,) = stack.server_pids()
    assert stack.command(f"shutdown_server {server}") == []
    assert stack.server_pids() == [server]
    assert stack.command(f"shutdown_server {server} -f") == []
    assert (client.finish(), client.error) == (3, 806)
    assert gone(server)


def test_quit_waits_for_the_last_client(stack: SimulatedStack) -> None:
    client = stack.busy_client("--seconds", "0.4")
    assert stack.program(lines="quit\n").returncode == 0
    assert client.finish() == 0


def test_quit_with_a_timeout_does_not(stack: SimulatedStack) -> None:
    client = stack.busy_client()
    assert stack.program(lines="quit -t 0\n").returncode == 0
    assert (client.finish(), client.error) == (3, 806)


def test_orderly_exit_on_sigterm(stack: SimulatedStack) -> None:
    client = stack.busy_client()
    client.process.terminate()
    assert client.finish() == 0
    assert client.events[-1]["event"] == "finished"


@pytest.mark.root
@pytest.mark.usefixtures("need_root")
class TestUsers:
    def test_server_runs_as_its_clients_user(self, stack: SimulatedStack) -> None:
        stack.busy_client("--iterations", "1", uid=65534).finish()
        assert [uid_of(pid) for pid in stack.server_pids()] == [65534]

    def test_other_user_waits_until_the_server_is_idle(self, stack: SimulatedStack) -> None:
        first = stack.busy_client()
        (server,) = stack.server_pids()
        other = stack.client("--iterations", "1", uid=65534)
        assert eventually(lambda: "backoff is enabled" in (stack.logs / "control.log").read_text())
        third = stack.busy_client("--iterations", "1")
        assert third.finish() == 0, "a client of the running server's user is still served"
        assert other.events == []
        first.process.terminate()
        assert (first.finish(), other.finish()) == (0, 0)
        assert gone(server)
        assert [uid_of(pid) for pid in stack.server_pids()] == [65534]

    def test_start_server_for_another_user_replaces_an_idle_one(self, stack: SimulatedStack) -> None:
        stack.command("start_server -uid 0")
        ready_server(stack)
        stack.command("start_server -uid 65534")

        def replaced() -> bool:
            # The one before may end between the list and the look.
            with suppress(FileNotFoundError):
                return [uid_of(pid) for pid in stack.server_pids()] == [65534]
            return False

        assert eventually(replaced)

    @pytest.fixture
    def shared(self, root: Path) -> Iterator[SimulatedStack]:
        with SimulatedStack(root, multiuser=True) as stack:
            yield stack

    def test_multiuser_server_is_roots_and_serves_all(self, shared: SimulatedStack) -> None:
        clients = [shared.busy_client(), shared.busy_client(uid=65534)]
        (server,) = shared.server_pids()
        assert uid_of(server) == 0
        assert shared.command(f"get_client_list {server}") == [str(client.pid) for client in clients]
