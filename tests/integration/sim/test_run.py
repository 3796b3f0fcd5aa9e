"""`mpsguard run` over the simulated stack: whatever stops the program, its GPU work ends before a signal reaches it."""

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.sim.script import Script
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.guarded import Guarded, Program, descriptors, no_more_descriptors
from tests.integration.running import SIMULATED_CLIENT, TELLS_OF, Running
from tests.integration.sim.stopped_readers import stopped_readers

LONG = ("--step-ms", "60000")
"""A kernel that is in flight when the signal comes, and would be for long after the test."""


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running


@pytest.fixture
def innocent(guarded: Guarded) -> Program:
    program = guarded.client()
    program.expect("started")
    return program


@pytest.fixture
def run(guarded: Guarded) -> Iterator["Starter"]:
    starter = Starter(guarded)
    yield starter
    for running in starter.started:
        running.close()


class Starter:
    def __init__(self, guarded: Guarded) -> None:
        self._guarded = guarded
        self.started: list[Running] = []

    def __call__(self, *command: str, options: tuple[str, ...] = ()) -> Running:
        environment = {key: value for key, value in os.environ.items() if key != "CUDA_MPS_PIPE_DIRECTORY"}
        options = ("--config", str(self._guarded.config), *options)
        self.started.append(Running(self._guarded.root, options, list(command), environment))
        return self.started[-1]


def pending(pid: int, number: signal.Signals) -> bool:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool((int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)) & 1 << number - 1)


def unhurt(program: Program) -> bool:
    return program.process.poll() is None and program.silent()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_work_in_flight_ends_before_the_signal_and_no_other_client_is_hurt(
    guarded: Guarded, run: Starter, innocent: Program, number: signal.Signals
) -> None:
    running = run(*SIMULATED_CLIENT, *LONG)
    assert running.expect("connected", "bare")["event"] == "connected"
    running.expect("started")
    wait_for("two clients", lambda: len(guarded.clients()) == 2)
    running.process.send_signal(number)
    # Its default action may end the process before it has read what the server told it, and SIGTERM ends it in order
    # if it comes before the first kernel.
    assert running.wait() in (3, 128 + number, *([0] if number is signal.SIGTERM else []))
    assert [event["data"]["answer"] for event in guarded.events("client_terminated")] == ["0"]
    assert running.said() == []
    assert unhurt(innocent)


def test_every_client_below_the_program_is_found(
    guarded: Guarded, run: Starter, innocent: Program, tmp_path: Path
) -> None:
    """A worker of the script, one in a session of its own, and one that has lost its parent."""
    client = " ".join([*SIMULATED_CLIENT, *LONG])
    script = f"{client} & setsid {client} & (setsid {client} &) ; wait; exec sleep 60"
    # Its clients' work is ended first: a script that ended with them would not be there for the signal.
    running = run("sh", "-c", script)
    workers = wait_for("four clients", lambda: found if len(found := guarded.clients()) == 4 else None)
    pids = {client["process"]["pid"] for client in workers} - {innocent.pid}
    for _ in pids:
        running.expect("started")
    running.process.terminate()
    assert running.wait() == 128 + signal.SIGTERM
    assert {event["data"]["pid"] for event in guarded.events("client_terminated")} == pids
    wait_for("the workers' end", lambda: len(guarded.clients()) == 1)
    assert unhurt(innocent)


def test_the_second_signal_kills_all_in_the_same_order(guarded: Guarded, run: Starter, innocent: Program) -> None:
    client = " ".join([*SIMULATED_CLIENT, *LONG])
    running = run("sh", "-c", f"setsid {client} & " + TELLS_OF.format(number="TERM", then="true"))
    running.expect("started")
    running.process.terminate()
    # Before it was passed on, another one would have counted as a second Ctrl-C of an impatient user.
    running.expect("TERM")
    wait_for("the client's end", lambda: len(guarded.clients()) == 1)
    assert running.process.poll() is None
    running.process.terminate()
    assert running.wait() == 128 + signal.SIGKILL
    assert unhurt(innocent)


def test_a_program_that_is_no_client_gets_its_signal_and_one_notice_is_printed(guarded: Guarded, run: Starter) -> None:
    running = run("sh", "-c", TELLS_OF.format(number="HUP", then="true"))
    running.expect("up")
    for _ in range(3):
        running.process.send_signal(signal.SIGHUP)
        running.expect("HUP")
    running.process.terminate()
    assert running.wait() == 128 + signal.SIGTERM
    assert len(running.said()) == 1


def test_a_daemon_that_hangs_is_not_waited_for_beyond_the_deadline(guarded: Guarded, run: Starter) -> None:
    running = run(*SIMULATED_CLIENT, options=("--deadline", "0.5"))
    running.expect("started")
    Script(guarded.pipe).hang("terminate_client")
    running.process.terminate()
    # The program heeds SIGTERM by itself.
    assert running.expect("finished", "died")["event"] == "finished"
    assert running.wait() == 0
    assert len(running.said()) == 1
    Script(guarded.pipe).clear()


def test_a_guard_that_hangs_is_not_waited_for_beyond_the_deadline(guarded: Guarded, run: Starter) -> None:
    running = run(*SIMULATED_CLIENT, options=("--deadline", "0.5"))
    running.expect("started")
    guarded.guard.send_signal(signal.SIGSTOP)
    running.process.terminate()
    assert running.wait() == 0
    assert len(running.said()) == 1
    guarded.guard.send_signal(signal.SIGCONT)


def test_an_impatient_user_does_not_wait_for_the_guard(guarded: Guarded, run: Starter) -> None:
    running = run(*SIMULATED_CLIENT, options=("--deadline", "300"))
    running.expect("started")
    guarded.guard.send_signal(signal.SIGSTOP)
    running.process.terminate()
    assert running.silent()
    # Two that are pending at the same time would be one.
    wait_for("the first one taken in", lambda: not pending(running.pid, signal.SIGTERM))
    running.process.terminate()
    assert running.wait() == 0
    guarded.guard.send_signal(signal.SIGCONT)


def test_ctrl_c_in_a_terminal_reaches_the_program_in_the_clean_order(guarded: Guarded, innocent: Program) -> None:
    command = [sys.executable, "-m", "mpsguard.cli.guard", "run", "--config", str(guarded.config), "--"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*command, *SIMULATED_CLIENT, *LONG])
    try:
        said = b""
        while b"started" not in said:
            assert select.select([terminal], [], [], PATIENCE)[0]
            said += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(terminal)
    # Python makes KeyboardInterrupt of SIGINT, unless it sees its CUDA error first.
    assert status in (1, 3, 128 + signal.SIGINT)
    assert [event["data"]["answer"] for event in guarded.events("client_terminated")] == ["0"]
    assert unhurt(innocent)


def test_no_descriptor_stays_open_however_often_the_guard_is_asked(guarded: Guarded, run: Starter) -> None:
    running = run("sh", "-c", TELLS_OF.format(number="HUP", then="true"))
    running.expect("up")

    def one_round() -> None:
        running.process.send_signal(signal.SIGHUP)
        running.expect("HUP")

    one_round()
    before = {pid: descriptors(pid) for pid in (running.pid, guarded.guard.pid)}
    for _ in range(5):
        one_round()
    for pid, count in before.items():
        no_more_descriptors(pid, count)
    # `mpsguard run` alone being killed would leave the program.
    running.process.terminate()
    running.wait()


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode != 0,
    reason="needs root and a kernel that lets it make pid namespaces",
)
def test_in_a_container_with_a_pid_namespace_of_its_own(guarded: Guarded, innocent: Program) -> None:
    command = [sys.executable, "-m", "mpsguard.cli.guard", "run", "--config", str(guarded.config), "--"]
    inside = Program(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command, *SIMULATED_CLIENT, *LONG],
        guarded.environment,
    )
    try:
        inside.expect("started")
        pid = int(Path(f"/proc/{inside.pid}/task/{inside.pid}/children").read_text().split()[0])
        os.kill(pid, signal.SIGTERM)
        assert inside.wait() in (0, 3, 128 + signal.SIGTERM)
        assert len(guarded.events("client_terminated")) == 1
        assert unhurt(innocent)
    finally:
        inside.close()


def test_the_work_of_a_program_that_has_only_just_come_is_ended_too(guarded: Guarded, run: Starter) -> None:
    # The guard's readers of /proc stand still: the program has its socket a second before the guard knows its name.
    with stopped_readers(guarded.guard.pid):
        running = run(*SIMULATED_CLIENT, *LONG)
        running.expect("started")
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() in (0, 3, 128 + signal.SIGTERM)
        assert len(guarded.events("client_terminated")) == 1
