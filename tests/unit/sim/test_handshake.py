"""The socket contract, spoken by hand."""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

import pytest

from fault_injection.sim.stack import eventually, gone

from . import raw

if TYPE_CHECKING:
    from fault_injection.sim.stack import SimulatedStack


def control_log(stack: SimulatedStack) -> str:
    return (stack.logs / "control.log").read_text()


def test_ui_session(stack: SimulatedStack) -> None:
    assert raw.ask(stack.pipes / "control", "get_default_client_priority", "foo") == ["0", 'Unknown command "foo"']
    assert raw.ask(stack.pipes / "control_privileged", "get_default_client_priority") == ["0"]


def test_probe_that_says_nothing_is_harmless(stack: SimulatedStack) -> None:
    with raw.connect(stack.pipes / "control") as probe:
        assert probe.recv(64) == b"OUTBHELL\0"
    assert raw.ask(stack.pipes / "control", "get_default_client_priority") == ["0"]


def test_a_silent_connection_delays_every_client(stack: SimulatedStack) -> None:
    with raw.connect(stack.pipes / "control") as silent:
        silent.recv(64)
        with raw.connect(stack.pipes / "control", timeout=0.3) as other, pytest.raises(TimeoutError):
            other.recv(64)
    assert raw.ask(stack.pipes / "control", "get_default_client_priority") == ["0"]


def test_client_waits_for_the_server_and_gets_a_socket_to_it(stack: SimulatedStack) -> None:
    with raw.connect(stack.pipes / "control") as sock:
        sock.recv(64)
        raw.identify(sock, 2)
        with raw.handed_over(sock) as server:
            assert server.family == socket.AF_UNIX
            assert server.type == socket.SOCK_SEQPACKET
            sock.send(struct.pack("i", 0))
            assert raw.hung_up(sock)
    assert len(stack.server_pids()) == 1


def test_wrong_first_message_is_hung_up_on(stack: SimulatedStack) -> None:
    with raw.connect(stack.pipes / "control") as sock:
        sock.recv(64)
        sock.send(b"something else")
        assert raw.hung_up(sock)


@pytest.mark.root
@pytest.mark.usefixtures("need_root")
def test_identity_is_what_the_message_says(stack: SimulatedStack) -> None:
    (answer,) = raw.ask(stack.pipes / "control", "set_default_client_priority 1", uid=1000)
    assert answer.startswith("Insufficient privileges for UID 1000.")
    assert raw.ask(stack.pipes / "control", "get_default_client_priority", uid=1000) == ["0"]
    assert stack.busy_client("--iterations", "1").finish() == 0
    (server,) = stack.command("get_server_list")
    assert raw.ask(stack.pipes / "control", f"terminate_client {server} 2", uid=1000)[-1] == "800"
    assert raw.ask(stack.pipes / "control", "quit", uid=1000) == ["Not enough privilege to execute quit command"]


@pytest.mark.root
@pytest.mark.usefixtures("need_root")
def test_privileged_socket_is_for_the_daemons_user(stack: SimulatedStack) -> None:
    with raw.connect(stack.pipes / "control_privileged") as sock:
        sock.recv(64)
        raw.send_credentials(sock, uid=1000)
        assert raw.hung_up(sock)


def test_files_and_their_modes(stack: SimulatedStack) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in stack.pipes.iterdir()}
    assert modes == {
        "control": 0o666,
        "control_lock": 0o666,
        "control_privileged": 0o755,
        "log": 0o777,
        "nvidia-cuda-mps-control.pid": 0o644,
    }
    assert (stack.pipes / "nvidia-cuda-mps-control.pid").read_text() == str(stack.daemon_pid())
    assert stat.S_ISFIFO((stack.pipes / "log").stat().st_mode)


def test_second_daemon_is_refused(stack: SimulatedStack) -> None:
    second = stack.program("-d")
    assert (second.returncode, second.stderr.strip()) == (1, "An instance of this daemon is already running")


def test_quit_leaves_sockets_and_lock(stack: SimulatedStack) -> None:
    daemon = stack.daemon_pid()
    assert stack.program(lines="quit\n").returncode == 0
    assert gone(daemon)
    assert sorted(path.name for path in stack.pipes.iterdir()) == ["control", "control_lock", "control_privileged"]


def test_hundred_clients_wait_for_one_server(stack: SimulatedStack) -> None:
    """Held back in the pending list or in the backlog, all of them are served in the end."""
    socks = [raw.connect(stack.pipes / "control") for _ in range(100)]
    for sock in socks:
        sock.recv(64)
        raw.identify(sock, 2)
    for sock in socks:
        raw.handed_over(sock).close()
        sock.send(struct.pack("i", 0))
        sock.close()
    assert len(stack.server_pids()) == 1
    (server,) = stack.server_pids()
    assert eventually(lambda: stack.command(f"get_client_list {server}") == [])


def test_log_lines_carry_time_origin_and_pid(stack: SimulatedStack) -> None:
    stack.command("get_server_list")
    pid = stack.daemon_pid()
    assert eventually(lambda: control_log(stack).endswith("UI closed\n"))
    for line in control_log(stack).splitlines():
        stamp, _bracket, _text = line.partition("] ")
        assert stamp[0] == "["
        assert stamp[25:] == f"Control {pid:5}"
    assert os.access(stack.logs / "server.log", os.R_OK)
