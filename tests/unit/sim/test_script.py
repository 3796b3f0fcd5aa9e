"""Misbehaviour on demand: each point does what it says, and stops when it is cleared."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fault_injection.sim.stack import eventually, gone

from . import raw

if TYPE_CHECKING:
    from fault_injection.sim.stack import SimulatedStack


def test_hanging_command_holds_up_the_daemon_until_cleared(stack: SimulatedStack) -> None:
    stack.script.hang("get_server_list")
    with raw.connect(stack.pipes / "control") as sock:
        assert sock.recv(64) == b"OUTBHELL\0"
        raw.identify(sock, 4)
        raw.say(sock, "get_server_list")
        assert eventually(lambda: "Cmd:get_server_list" in (stack.logs / "control.log").read_text())
        with raw.connect(stack.pipes / "control", timeout=0.2) as other, pytest.raises(TimeoutError):
            other.recv(64)
        stack.script.clear()
        assert raw.replies(sock) == ([], 0)
    assert stack.command("get_server_list") == []


def test_hang_for_a_while(stack: SimulatedStack) -> None:
    stack.script.hang("get_server_list", seconds=0.5)
    start = time.monotonic()
    assert stack.command("get_default_client_priority") == ["0"]
    assert stack.command("get_server_list") == []
    assert time.monotonic() - start >= 0.4


def test_hanging_accept(stack: SimulatedStack) -> None:
    stack.script.hang_accept()
    with raw.connect(stack.pipes / "control", timeout=0.2) as sock, pytest.raises(TimeoutError):
        sock.recv(64)
    stack.script.clear("accept")
    assert stack.command("get_default_client_priority") == ["0"]


def test_dropped_handshakes(stack: SimulatedStack) -> None:
    stack.script.drop_handshakes()
    client = stack.client("--iterations", "1")
    assert (client.finish(), client.error) == (3, 806)
    stack.script.clear()
    assert stack.busy_client("--iterations", "1").finish() == 0


def test_crash_of_the_daemon(stack: SimulatedStack) -> None:
    daemon = stack.daemon_pid()
    stack.script.crash("daemon", on="ps")
    assert stack.program(lines="ps\n").returncode != 0
    assert gone(daemon)


def test_crash_of_the_server(stack: SimulatedStack) -> None:
    client = stack.busy_client()
    (server,) = stack.server_pids()
    stack.script.crash("server", on="ps")
    stack.command("ps")
    assert (client.finish(), client.error) == (3, 806)
    assert gone(server)


def test_forced_fault(stack: SimulatedStack) -> None:
    stack.busy_client("--iterations", "1").finish()
    (server,) = stack.server_pids()
    stack.script.force_fault()
    assert stack.command(f"get_server_status {server}") == ["FAULT"]
    refused = stack.client("--iterations", "1")
    assert (refused.finish(), refused.error) == (3, 807)
    stack.script.clear()
    assert stack.command(f"get_server_status {server}") == ["ACTIVE"]


def test_legacy_daemon(idle: SimulatedStack) -> None:
    idle.script.driver("535")
    idle.start()
    assert not (idle.pipes / "nvidia-cuda-mps-control.pid").exists()
    assert idle.command("get_server_status 1") == ['Unknown command "get_server_status"']
    assert idle.command("device_query") == ['Unknown command "device_query"']
    assert idle.busy_client("--iterations", "1").finish() == 0
