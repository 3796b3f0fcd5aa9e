"""`mpsguard run --standby 1` with no guard: which processes there are, what they are given, and how it all ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpsguard.linux.processes import process_tree
from mpsguard.vault.supervisor import process_stop
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.guarded import descriptors, no_more_descriptors
from tests.integration.running import NOWHERE, PYTHON, Running

RUN = [sys.executable, "-m", "mpsguard.cli.guard", "run"]
PROGRAM = """
import json, os, signal, socket, sys, time
from mpsguard.vault.client import tcp_progress
from mpsguard.vault.client.kept_connections import KeptConnections, tell_ready
from mpsguard.linux.systemd import service_manager

def tell(event, **more):
    line = {"event": event, "pid": os.getpid(), "role": os.environ["MPSGUARD_ROLE"], **more}
    os.write(1, (json.dumps(line) + "\\n").encode())

def act(number, _):
    if number == signal.SIGUSR1:
        tell_ready(promoted=True)
        if "silent" in sys.argv:
            return
        taken = KeptConnections.from_environment().take()
        tell("took", written={tag: tcp_progress.written(sock) for tag, sock in taken.items()})
        if "waits" in sys.argv:
            os.write(os.open(sys.argv[-1], os.O_RDWR), b"x")
    else:
        os._exit(0)

signal.signal(signal.SIGUSR1, act)
signal.signal(signal.SIGUSR2, act)
given = service_manager.take_listen_fds()
fifo = os.open(sys.argv[-1], os.O_RDWR) if "waits" in sys.argv else -1
connections = KeptConnections.from_environment(io_fence="gated" in sys.argv)
if "unready" not in sys.argv:
    tell_ready()
if given and os.environ["MPSGUARD_ROLE"] == "active":
    listener = socket.socket(fileno=min(given))
    sock = None
    if "accept" in sys.argv:
        while sock is None:
            sock = connections.accept(listener, 5)
tell("up", kept=connections.kept, listening=[
    [name, socket.socket(fileno=os.dup(fd)).getsockname()[:2]] for fd, name in given.items()
], variables={name: os.environ.get(name) for name in (
    "CUDA_MPS_PIPE_DIRECTORY", "MPSGUARD_VAULT", "MPSGUARD_PROGRAM", "LISTEN_FDS"
)})
if "fail" in sys.argv:
    os._exit(9)
if "writes" in sys.argv and os.environ["MPSGUARD_ROLE"] == "active":
    while True:
        sock.sendall(b"x" * 1000)
if "gated" in sys.argv and os.environ["MPSGUARD_ROLE"] == "active":
    with connections.in_use():
        tell("inside")
        sock.sendall(b"x" * 1000)
if "waits" in sys.argv and os.environ["MPSGUARD_ROLE"] == "active":
    os.read(fifo, 1)
    tell("ran on")
if "stuck" in sys.argv and os.environ["MPSGUARD_ROLE"] == "active":
    tell("stuck")
    # A process that waits for the end of a vfork(2) cannot be stopped, as if it were inside a driver.
    where = [(os.POSIX_SPAWN_OPEN, 1, sys.argv[-1], os.O_WRONLY, 0o600)]
    os.posix_spawn(sys.executable, [sys.executable], os.environ, file_actions=where)
while True:
    time.sleep(600)
"""
"""Promoted by SIGUSR1, done by SIGUSR2.

Arguments: unready, accept, writes, fail, gated, silent (takes no connections); stuck or waits (for a byte from the
process that took the connections), and a FIFO's path.
"""


class Starter:
    def __init__(self, root: Path) -> None:
        self._root = root
        self.started: list[Running] = []
        self._pids: list[int] = []

    def __call__(self, *arguments: str, options: tuple[str, ...] = ()) -> Running:
        command = [*PYTHON, PROGRAM, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self.started.append(Running(self._root, (*NOWHERE, "--standby", "1", *options), command, environment))
        return self.started[-1]

    def up(self, running: Running) -> dict[str, Any]:
        told = running.expect("up")
        self._pids.append(told["pid"])
        return told

    def close(self) -> None:
        left = set(self._pids)
        for running in self.started:
            # Some have not been heard of yet.
            left |= {key.pid for key in process_tree.descendants(running.pid)}
            running.close()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    starter.close()


def both(run: Starter, running: Running) -> tuple[dict[str, Any], dict[str, Any]]:
    # The standby is started when the active one is ready, and may tell of itself before that one does.
    active, standby = sorted((run.up(running), run.up(running)), key=lambda told: str(told["role"]))
    assert (active["role"], standby["role"]) == ("active", "standby")
    return active, standby


def rest(running: Running) -> list[str]:
    """Return the events of a program that has ended which the test has not read."""
    told = []
    with suppress(EOFError):
        while True:
            told.append(running.next()["event"])
    return told


def read_to_the_end(sock: socket.socket) -> int:
    """Read until nothing has come for a second; how many bytes have come in all, by the kernel's count."""
    while select.select([sock], [], [], 1.0)[0]:
        assert sock.recv(1 << 20)
    return int.from_bytes(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)[128:136], sys.byteorder)


def procfs_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_both_have_their_role_their_lane_and_the_same_listening_sockets(run: Starter) -> None:
    running = run(options=("--listen", "127.0.0.1:0", "--listen", "[::1]:0"))
    active, standby = both(run, running)
    assert active["kept"]
    assert standby["kept"]
    assert [name for name, _ in active["listening"]] == ["listen-0", "listen-1"]
    assert active["listening"] == standby["listening"]
    program = active["variables"]["MPSGUARD_PROGRAM"]
    assert program
    ours = {
        "MPSGUARD_VAULT": "/nonexistent/mpsguard/vault.sock",
        "MPSGUARD_PROGRAM": program,
        "LISTEN_FDS": None,  # taken
    }
    assert active["variables"] == {**ours, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent/mps"}
    assert standby["variables"] == {**ours, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent/mps/standby"}


def test_a_signal_ends_both(run: Starter) -> None:
    running = run()
    active, standby = both(run, running)
    running.process.terminate()
    assert running.wait() == 128 + signal.SIGTERM
    assert not alive(active["pid"])
    assert not alive(standby["pid"])


def test_what_is_done_is_done(run: Starter) -> None:
    running = run()
    active, standby = both(run, running)
    os.kill(active["pid"], signal.SIGUSR2)
    assert running.wait() == 0
    assert not alive(standby["pid"])


def test_the_standby_goes_on_and_has_a_standby_itself(run: Starter) -> None:
    running = run()
    active, standby = both(run, running)
    os.kill(active["pid"], signal.SIGKILL)
    os.kill(standby["pid"], signal.SIGUSR1)
    assert running.expect("took")["pid"] == standby["pid"]
    assert run.up(running)["role"] == "standby"
    os.kill(standby["pid"], signal.SIGUSR2)
    assert running.wait() == 0


def test_a_standby_that_ends_is_replaced(run: Starter) -> None:
    running = run()
    active, standby = both(run, running)
    os.kill(standby["pid"], signal.SIGKILL)
    assert run.up(running)["role"] == "standby"
    assert alive(active["pid"])


def test_it_gives_up_with_the_exit_code_of_the_last_death(run: Starter) -> None:
    running = run("unready", "fail", options=("--give-up", "3"))
    assert [run.up(running)["role"] for _ in range(3)] == ["active"] * 3
    assert running.wait() == 9


def test_it_gives_up_a_program_that_dies_after_each_promotion(run: Starter) -> None:
    """Each death finds a standby that is ready: without a limit this would go on for good."""
    running = run("silent", options=("--give-up", "3"))
    active, standby = both(run, running)
    for _ in range(2):
        os.kill(active["pid"], signal.SIGSEGV)
        os.kill(standby["pid"], signal.SIGUSR1)
        active, standby = standby, run.up(running)
    os.kill(active["pid"], signal.SIGSEGV)
    assert running.wait() == 128 + signal.SIGSEGV
    wait_for("the last standby's end", lambda: not alive(standby["pid"]))


def test_a_superseded_process_writes_no_more_before_its_connections_are_given_away(run: Starter) -> None:
    """It lives, it is in the middle of writing, and does not know."""
    running = run("accept", "writes", options=("--listen", "127.0.0.1:0"))
    standby = run.up(running)
    assert standby["role"] == "standby", "the active one waits for a connection"
    with socket.create_connection(tuple(standby["listening"][0][1])) as opening:
        active = run.up(running)
        assert opening.recv(1000)
        with ThreadPoolExecutor(1) as reading:
            # It goes on reading meanwhile, so that nothing but the stop keeps the active one from writing.
            arrived = reading.submit(read_to_the_end, opening)
            os.kill(standby["pid"], signal.SIGUSR1)
            told = running.expect("took")
            assert told["written"] == {"5": arrived.result(60)}
        wait_for("its end", lambda: not alive(active["pid"]))


def test_a_process_that_cannot_be_stopped_is_not_waited_for_if_it_is_outside_its_fence(
    run: Starter, tmp_path: Path
) -> None:
    fifo = tmp_path / "nobody-reads-it"
    os.mkfifo(fifo)
    running = run("accept", "gated", "stuck", str(fifo), options=("--listen", "127.0.0.1:0"))
    standby = run.up(running)
    with socket.create_connection(tuple(standby["listening"][0][1])):
        active = run.up(running)
        running.expect("stuck")
        wait_for("a wait that no signal but SIGKILL ends", lambda: procfs_state(active["pid"]) == "D")
        begun = time.monotonic()
        os.kill(standby["pid"], signal.SIGUSR1)
        assert running.expect("took")["written"] == {"5": 1000}
        # Else it would have been given them only after this.
        assert time.monotonic() - begun < process_stop.QUIESCE_DEADLINE
        wait_for("its end", lambda: not alive(active["pid"]))


@pytest.mark.parametrize("more", [(), ("gated",)], ids=["stopped", "gated"])
def test_a_superseded_process_does_not_run_on_beside_its_successor(
    run: Starter, tmp_path: Path, more: tuple[str, ...]
) -> None:
    fifo = tmp_path / "from-the-successor"
    os.mkfifo(fifo)
    running = run("accept", *more, "waits", str(fifo), options=("--listen", "127.0.0.1:0"))
    standby = run.up(running)
    with socket.create_connection(tuple(standby["listening"][0][1])):
        active = run.up(running)
        if more:
            running.expect("inside")
        os.kill(standby["pid"], signal.SIGUSR1)
        running.expect("took")
        wait_for("its end", lambda: not alive(active["pid"]))
    os.kill(standby["pid"], signal.SIGUSR2)
    assert running.wait() == 0
    assert "ran on" not in rest(running)


@pytest.mark.parametrize("more", [(), ("gated",)], ids=["stopped", "gated"])
def test_a_successor_that_asks_for_no_connections_is_not_waited_for(run: Starter, more: tuple[str, ...]) -> None:
    running = run("accept", "silent", *more, options=("--listen", "127.0.0.1:0"))
    standby = run.up(running)
    with socket.create_connection(tuple(standby["listening"][0][1])):
        active = run.up(running)
        os.kill(standby["pid"], signal.SIGUSR1)
        assert run.up(running)["role"] == "standby"
        wait_for("its end", lambda: not alive(active["pid"]))


def test_a_superseded_process_that_has_no_connections_ends_by_itself(run: Starter) -> None:
    """Its exit code is not the program's."""
    running = run(options=("--grace", "60"))
    active, standby = both(run, running)
    os.kill(standby["pid"], signal.SIGUSR1)
    running.expect("took")
    assert run.up(running)["role"] == "standby"
    assert alive(active["pid"])
    os.kill(active["pid"], signal.SIGUSR2)
    wait_for("its end", lambda: not alive(active["pid"]))
    os.kill(standby["pid"], signal.SIGUSR2)
    assert running.wait() == 0


def test_a_superseded_process_that_does_not_end_is_ended(run: Starter) -> None:
    running = run(options=("--grace", "0.1"))
    active, standby = both(run, running)
    os.kill(standby["pid"], signal.SIGUSR1)
    running.expect("took")
    wait_for("its end", lambda: not alive(active["pid"]))
    assert alive(standby["pid"])


def test_a_death_that_the_guard_saw_first_is_reported(run: Starter) -> None:
    """The standby is promoted before `mpsguard run` sees that the active process has died."""
    running = run(options=("--grace", "60"))
    active, standby = both(run, running)
    os.kill(standby["pid"], signal.SIGUSR1)
    running.expect("took")
    os.kill(active["pid"], signal.SIGKILL)
    line = f"process {active['pid']} ended (exit code 137, signal 9)"
    wait_for("a line for its death", lambda: any(line in each for each in running.said()))


def test_sigkill_of_run_kills_neither(run: Starter) -> None:
    """They go on serving, and the vault still promotes; only no process keeps connections, or starts a standby."""
    running = run()
    active, standby = both(run, running)
    running.process.kill()
    running.wait()
    assert alive(active["pid"])
    assert alive(standby["pid"])


def test_it_holds_no_more_descriptors_after_many_processes(run: Starter) -> None:
    running = run()
    _, standby = both(run, running)
    before = descriptors(running.pid)
    for _ in range(3):
        os.kill(standby["pid"], signal.SIGKILL)
        standby = run.up(running)
    no_more_descriptors(running.pid, before)


SUPERVISOR = """
import asyncio, os, sys
from mpsguard.vault.supervisor.failover_pair import FailoverPair, Plan
from mpsguard.vault.wire.supervisor_wire import ProcessRole

async def main():
    program = "import os; from mpsguard.vault.client.kept_connections import tell_ready; tell_ready(); os._exit(3)"
    environment = dict.fromkeys(ProcessRole, dict(os.environ))
    plan = Plan((sys.executable, "-c", program), environment, {}, own_group=True, give_up=2, settle=0.0)
    pair = FailoverPair(plan, None, print, lambda: None)
    pair.start()
    for _ in range(3):
        # The loop does not run meanwhile, so that nothing was heard when the end is seen.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        pair.reap(lambda: None)
        assert pair.exit_code is None
        await asyncio.sleep(0.001)
    pair.close()

asyncio.run(main())
"""


def test_what_was_said_last_counts_before_the_end() -> None:
    """Each says that it is ready, and ends: it would be given up after two of them if that were not heard."""
    done = subprocess.run(
        [*PYTHON, SUPERVISOR], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
