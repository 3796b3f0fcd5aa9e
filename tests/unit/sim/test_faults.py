"""What one client's fault does to the others, against the table measured on an H200 with driver 580.159.04."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from fault_injection.sim.stack import eventually
from tests.open_files import open_files

if TYPE_CHECKING:
    from fault_injection.sim.stack import SimulatedClient, SimulatedStack

SURVIVES = None


def error_of(stack: SimulatedStack, bystander: SimulatedClient, *, expected: int | None) -> int | None:
    """What became of a client that runs until it is told to stop; a survivor gets time to be hit first."""
    if expected is SURVIVES:
        stack.client("--seconds", "0.4").finish()
        bystander.process.terminate()
    assert bystander.finish() == (0 if expected is SURVIVES else 3)
    return bystander.error


@pytest.mark.parametrize(
    ("kind", "culprit", "innocent"),
    [
        ("null", 700, 700),
        ("misaligned", 716, 716),
        ("illegal", 715, 715),
        ("trap", 719, 719),
        ("assert", 710, SURVIVES),
    ],
)
def test_fault_and_its_victims(stack: SimulatedStack, kind: str, culprit: int, innocent: int | None) -> None:
    bystander = stack.busy_client()
    guilty = stack.client("--fault", kind, "--after", "0.1")
    assert (guilty.finish(), guilty.error) == (3, culprit)
    assert error_of(stack, bystander, expected=innocent) == innocent


def test_misaligned_access_looks_like_success_to_the_culprit_first(stack: SimulatedStack) -> None:
    guilty = stack.client("--fault", "misaligned", "--iterations", "1")
    assert (guilty.finish(), guilty.error) == (0, None)


@pytest.mark.parametrize(
    ("kind", "signal_number", "innocent"),
    [
        ("kill", signal.SIGKILL, 700),
        ("segv", signal.SIGSEGV, 700),
        ("killidle", signal.SIGKILL, SURVIVES),
        ("exitidle", 0, SURVIVES),
    ],
)
def test_death_and_its_victims(stack: SimulatedStack, kind: str, signal_number: int, innocent: int | None) -> None:
    bystander = stack.busy_client()
    dying = stack.client("--fault", kind, "--after", "0.05")
    assert dying.finish() == -signal_number
    assert error_of(stack, bystander, expected=innocent) == innocent


def test_newcomers_are_refused_until_the_last_victim_is_gone(stack: SimulatedStack) -> None:
    """The window stays open as long as one old client lingers: here one that is stopped."""
    lingering = stack.busy_client()
    (server,) = stack.server_pids()
    os.kill(lingering.pid, signal.SIGSTOP)
    guilty = stack.client("--fault", "trap")
    assert guilty.finish() == 3
    assert stack.command(f"get_server_status {server}") == ["FAULT"]
    refused = stack.client("--iterations", "1")
    assert (refused.finish(), refused.error) == (3, 807)
    os.kill(lingering.pid, signal.SIGCONT)
    assert (lingering.finish(), lingering.error) == (3, 719)
    assert eventually(lambda: stack.command(f"get_server_status {server}") == ["ACTIVE"])
    assert stack.busy_client("--iterations", "5").finish() == 0
    assert stack.server_pids() == [server], "the server lives through it"


def test_server_log_names_some_client_in_an_mmu_fault_and_mostly_an_innocent(stack: SimulatedStack) -> None:
    innocent = stack.busy_client()
    stack.client("--fault", "null").finish()
    line = f"Client {{PID: {innocent.pid}, Context: 1}} encountered a fatal GPU error."
    assert eventually(lambda: line in (stack.logs / "server.log").read_text())


def test_terminate_client_hurts_no_other(stack: SimulatedStack) -> None:
    bystander, target = stack.busy_client(), stack.busy_client("--step-ms", "60000")
    (server,) = stack.server_pids()
    assert stack.command(f"terminate_client {server} {target.pid}") == ["0"]
    assert (target.finish(), target.error) == (3, 810)
    assert error_of(stack, bystander, expected=SURVIVES) is None


def test_a_client_killed_right_after_the_answer_hurts_no_other(stack: SimulatedStack) -> None:
    bystander, target = stack.busy_client(), stack.busy_client("--step-ms", "60000")
    (server,) = stack.server_pids()
    assert stack.command(f"terminate_client {server} {target.pid}") == ["0"]
    target.process.kill()
    target.process.wait()
    assert error_of(stack, bystander, expected=SURVIVES) is None
    assert stack.server_pids() == [server]


def test_terminate_client_of_a_process_that_is_none(stack: SimulatedStack) -> None:
    stack.busy_client()
    (server,) = stack.server_pids()
    assert stack.command(f"terminate_client {server} {os.getpid()}") == ["201"]


def test_server_holds_the_memory_of_its_clients(stack: SimulatedStack) -> None:
    def held() -> int:
        return sum("simulated-gpu-memory" in link for link in open_files(server))

    client = stack.busy_client("--memory-mib", "64")
    (server,) = stack.server_pids()
    assert eventually(lambda: held() == 1)
    client.process.terminate()
    assert client.finish() == 0
    assert eventually(lambda: held() == 0)
