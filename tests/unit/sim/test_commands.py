"""Replies of the control daemon against those recorded: on driver 580.159.04, and without a server on that of 535."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fault_injection.sim.stack import SimulatedStack

HEAD = "{:<14}  {:<13}  {:<40}  {:<32}  {}".format("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")
ROW = "0               0000:00.06.00  GPU-51304c47-0000-4000-8000-000000000000  Simulated GPU                     N/A"
CSV = "0,0000:00.06.00,GPU-51304c47-0000-4000-8000-000000000000,Simulated GPU,N/A"

# Command line and reply; SERVER stands for the server's process id.
RECORDED: list[tuple[str, list[str]]] = [
    ("get_server_list", ["SERVER"]),
    ("get_server_status SERVER", ["ACTIVE"]),
    ("get_server_status 1", ["Server 1 not found"]),
    ("get_server_status", ["A server PID is required"]),
    ("get_client_list 1", ["Server 1 not found"]),
    ("get_client_list SERVER", []),
    ("get_device_client_list", ["[0] 00:00.0, Simulated GPU"]),
    ("get_default_active_thread_percentage", ["100.0"]),
    ("set_default_active_thread_percentage 50", ["50.0"]),
    ("get_default_active_thread_percentage", ["50.0"]),
    ("set_default_active_thread_percentage 150", ["50.0"]),
    ("set_active_thread_percentage SERVER 80", ["80.0"]),
    ("get_active_thread_percentage SERVER", ["80.0"]),
    ("set_default_device_pinned_mem_limit 0 1G", []),
    ("get_default_device_pinned_mem_limit 0", ["1G"]),
    ("set_device_pinned_mem_limit SERVER 0 2G", []),
    ("get_device_pinned_mem_limit SERVER 0", ["2G"]),
    ("get_default_device_pinned_mem_limit 7", ["No default pinned memory limit set for the device!"]),
    ("get_default_client_priority", ["0"]),
    ("set_default_client_priority 1", []),
    ("get_default_client_priority", ["1"]),
    ("set_default_client_priority 7", ["Invalid priority value - must be 0 or 1!"]),
    ("foo", ['Unknown command "foo"']),
    ("", ['Unknown command ""']),
    ("help", ['Unknown command "help"']),
    ("device_query", ["Default", HEAD, ROW, "", "Server SERVER", HEAD, ROW]),
    ("device_query SERVER --csv", ["Device Ordinal,PCI IDs,UUID,Name,Attributes", CSV]),
    ("terminate_client 1 2", ["Server 1 not found", "Server 1 not found!", "1"]),
    ("terminate_client SERVER 1", ["201"]),
    ("sm_partition add GPU 7", ['Unknown command "sm_partition"']),
    ("shutdown_server 1", ["Server 1 not found"]),
    ("start_server -uid 0", []),
]
RECORDED_ON_535 = [
    ("get_server_list", []),
    ("get_device_client_list", []),
    ("ps", ["Server not found"]),
    ("ps -p 1", ["Server 1 not found", "Server 1 not found", ""]),
    ("ps 1", ["Server not found"]),
    ("start_server", ["A user id (UID) is required to start a new server"]),
    ("start_server -uid abc", ["A user id (UID) is required to start a new server"]),
    ("shutdown_server", ["Server 0 not found"]),
    ("get_client_list", ["Server 0 not found"]),
    ("terminate_client x y", ["Server 0 not found", "Server 0 not found!", "1"]),
    ("set_default_active_thread_percentage", ["100.0"]),
    ("set_default_active_thread_percentage abc", ["100.0"]),
    ("set_active_thread_percentage 1 80", ["Server 1 not found"]),
    ("set_device_pinned_mem_limit 1 0 2G", ["Server 1 not found"]),
    ("set_default_client_priority x", []),
    (" get_server_list extra", []),
]


def test_recorded_replies(stack: SimulatedStack) -> None:
    """In the order in which they were recorded: some depend on the ones before."""
    client = stack.busy_client("--iterations", "1")
    assert client.finish() == 0
    (server,) = stack.command("get_server_list")
    asked = [(command.replace("SERVER", server), reply) for command, reply in RECORDED]
    for command, reply in asked:
        expected = [line.replace("SERVER", server) for line in reply]
        assert (command, stack.command(command)) == (command, expected)


@pytest.mark.parametrize(("command", "reply"), RECORDED_ON_535)
def test_replies_without_a_server(stack: SimulatedStack, command: str, reply: list[str]) -> None:
    assert stack.command(command) == reply


def test_clients_are_listed(stack: SimulatedStack) -> None:
    clients = [stack.busy_client() for _ in range(2)]
    (server,) = stack.command("get_server_list")
    pids = [str(client.pid) for client in clients]
    assert stack.command(f"get_client_list {server}") == pids
    assert stack.command("get_device_client_list") == ["[0] 00:00.0, Simulated GPU", *(f"{pid}.1" for pid in pids)]
    head, *rows = stack.command(f"ps -p {server}")
    assert head.split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
    assert [row.split()[:4] for row in rows] == [
        [pid, str(number), server, "GPU-51304c47-0000-4000"] for number, pid in enumerate(pids, start=1)
    ]


def test_defaults_reach_the_next_server(stack: SimulatedStack) -> None:
    stack.command("set_default_active_thread_percentage 30")
    stack.command("set_default_device_pinned_mem_limit 0 3G")
    stack.busy_client("--iterations", "1").finish()
    (server,) = stack.command("get_server_list")
    assert stack.command(f"get_active_thread_percentage {server}") == ["30.0"]
    assert stack.command(f"get_device_pinned_mem_limit {server} 0") == ["3G"]


def test_several_commands_in_one_session(stack: SimulatedStack) -> None:
    session = stack.program(lines="get_default_client_priority\nfoo\n")
    assert (session.returncode, session.stdout.splitlines()) == (0, ["0", 'Unknown command "foo"'])


def test_command_line_without_a_daemon(idle: SimulatedStack) -> None:
    alone = idle.program(lines="get_server_list\n")
    assert (alone.returncode, alone.stderr.strip()) == (1, "Cannot find MPS control daemon process")


def test_it_says_that_it_is_a_simulation(idle: SimulatedStack) -> None:
    assert "SIMULATION" in idle.program("-v").stdout
    assert "SIMULATION" in idle.program("-h").stdout
