"""`mpsguard run` as a wrapper, with no guard at all: exit codes, signals, groups, orphans, descriptors."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.running import NOWHERE, OBEDIENT, PYTHON, STUBBORN, TELLS_OF, Running

RUN = [sys.executable, "-m", "mpsguard.cli.guard", "run"]


class Starter:
    def __init__(self, root: Path) -> None:
        self._root = root
        self.started: list[Running] = []

    def __call__(self, *command: str, options: tuple[str, ...] = ()) -> Running:
        self.started.append(Running(self._root, (*NOWHERE, *options), list(command), os.environ))
        return self.started[-1]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    for running in starter.started:
        running.close()


def once(*arguments: str, options: tuple[str, ...] = NOWHERE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *options, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["/nonexistent/program"], 127),
        (["no-such-program-anywhere"], 127),
        (["/etc/passwd"], 126),
        (["/"], 126),
    ],
)
def test_the_exit_code_is_the_programs_or_a_shells(command: list[str], code: int) -> None:
    done = once("--", *command)
    assert done.returncode == code, done.stderr
    # The first line says that no guard is there.
    assert len(done.stderr.splitlines()) == 1 + (code in (126, 127))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--no-such-option", "--", "true"],
        ["--grace", "soon", "--", "true"],
        ["--domain", "x", "--pipe-directory", "/x", "--", "true"],
        ["--pipe-directory", "relative", "--", "true"],
        ["--config", "/nonexistent.toml", "--", "true"],
    ],
)
def test_wrong_usage_has_a_code_of_its_own(arguments: list[str]) -> None:
    done = once(*arguments, options=())
    assert done.returncode == 125
    assert done.stdout == ""


def test_the_program_gets_its_own_options_and_the_public_directory(tmp_path: Path) -> None:
    config = tmp_path / "mpsguard.toml"
    domains = [
        f'[[domain]]\nname="{name}"\npipe_directory="/x/{name}"\ngpus=["{gpu}"]' for gpu, name in enumerate("ab")
    ]
    config.write_text("\n".join(domains))
    show = ["sh", "-c", 'echo "$CUDA_MPS_PIPE_DIRECTORY $*"', "-", "--grace", "x"]
    done = once("--config", str(config), "--domain", "b", *show, options=())
    assert done.stdout == "/x/b --grace x\n"
    assert once("--config", str(config), "--", "true", options=()).returncode == 125
    assert once("--config", str(config), "--domain", "c", "--", "true", options=()).returncode == 125


def test_the_socket_of_a_guard_that_was_killed_serves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()
        assert once("--", "true", options=("--pipe-directory", str(tmp_path))).stderr == ""
        assert f"--pipe-directory {tmp_path}" in once("--", "true").stderr
    assert "no guard serves it" in once("--", "true", options=("--pipe-directory", str(tmp_path))).stderr
    assert f"--pipe-directory {tmp_path}" not in once("--", "true").stderr


def test_the_program_is_told_of_its_image() -> None:
    told = ["--", "sh", "-c", "echo $MPSGUARD_IMAGE"]
    assert once(*told, options=(*NOWHERE, "--image", "run-1")).stdout == "run-1\n"
    assert once(*told).stdout == "\n"
    refused = once(*told, options=(*NOWHERE, "--image", "../run"))
    assert refused.returncode == 125
    assert "--image: '../run'" in refused.stderr


def test_the_program_has_the_descriptors_and_signals_it_would_have_without() -> None:
    program = r"""
import os, re
status = open("/proc/self/status").read()
print(sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd")[:-1]))
# Signals 32 and 33 are the C library's own, and posix_spawn(3) leaves them ignored.
print([(name, int(mask, 16) & 0x7FFFFFFF) for name, mask in re.findall(r"(Sig(?:Blk|Ign)):\s*(\w+)", status)])
"""
    with_run = once("--", *PYTHON, program)
    without = subprocess.run([*PYTHON, program], capture_output=True, text=True, check=True)
    assert with_run.stdout == without.stdout


def test_what_was_ignored_stays_ignored(run: Starter) -> None:
    running = run("sh", "-c", 'kill -HUP $PPID; echo \'{"event": "up"}\'; exec sleep 600')
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ignoring = run(*PYTHON, OBEDIENT)
    finally:
        signal.signal(signal.SIGHUP, before)
    ignoring.expect("ready")
    ignoring.process.send_signal(signal.SIGHUP)
    assert ignoring.silent()
    ignoring.process.terminate()
    assert ignoring.wait() == 128 + signal.SIGTERM
    assert running.wait() == 128 + signal.SIGHUP


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_without_a_guard_the_signal_is_passed_on_and_that_is_said_once(run: Starter, number: signal.Signals) -> None:
    running = run(*PYTHON, OBEDIENT)
    pid = running.expect("ready")["pid"]
    running.process.send_signal(number)
    assert running.wait() == 128 + number
    # One when it starts, and one about the signal.
    assert len(running.said()) == 2
    assert gone(pid)


@pytest.mark.parametrize("options", [(), ("--foreground",)])
def test_a_second_signal_is_the_last_one(run: Starter, options: tuple[str, ...]) -> None:
    running = run(*PYTHON, STUBBORN, options=options)
    running.expect("ready")
    running.process.send_signal(signal.SIGINT)
    wait_for("the first to be passed on", lambda: len(running.said()) == 2)
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 128 + signal.SIGKILL
    assert len(running.said()) == 2


def test_after_the_grace_all_are_killed_those_in_other_sessions_too(run: Starter) -> None:
    script = 'setsid "$0" -c "$1" & (setsid "$0" -c "$1" &); exec "$0" -c "$1"'
    running = run("sh", "-c", script, sys.executable, STUBBORN, options=("--grace", "0.1"))
    pids = [running.expect("ready")["pid"] for _ in range(3)]
    running.process.terminate()
    assert running.wait() == 128 + signal.SIGKILL
    assert [pid for pid in pids if not gone(pid)] == []


def test_a_group_hears_of_it_not_the_first_process_alone(run: Starter) -> None:
    running = run("sh", "-c", '"$0" -c "$1" & wait', sys.executable, OBEDIENT)
    pid = running.expect("ready")["pid"]
    running.process.terminate()
    assert running.wait() == 128 + signal.SIGTERM
    wait_for("its child's end", lambda: gone(pid))


def test_other_signals_are_passed_on_as_they_are(run: Starter) -> None:
    running = run("sh", "-c", TELLS_OF.format(number="USR1", then="exit 5"))
    running.expect("up")
    running.process.send_signal(signal.SIGUSR1)
    running.expect("USR1")
    assert running.wait() == 5
    assert len(running.said()) == 1


def test_it_stops_and_goes_on_with_its_program(run: Starter) -> None:
    running = run(*PYTHON, OBEDIENT)
    pid = running.expect("ready")["pid"]

    def state(of: int) -> str:
        return Path(f"/proc/{of}/stat").read_text().rsplit(")", 1)[1].split()[0]

    running.process.send_signal(signal.SIGTSTP)
    wait_for("both to stop", lambda: {state(pid), state(running.pid)} == {"T"})
    running.process.send_signal(signal.SIGCONT)
    wait_for("both to go on", lambda: "T" not in {state(pid), state(running.pid)})
    running.process.terminate()
    assert running.wait() == 128 + signal.SIGTERM


def test_a_stopped_program_hears_of_its_end(run: Starter) -> None:
    running = run(*PYTHON, OBEDIENT)
    os.kill(running.expect("ready")["pid"], signal.SIGSTOP)
    running.process.terminate()
    assert running.wait() == 128 + signal.SIGTERM


def test_orphans_are_reaped(run: Starter) -> None:
    """Ten orphans that end: they are ours, and none stays a zombie."""
    orphans = "for i in 1 2 3 4 5 6 7 8 9 10; do (sh -c 'read x' </dev/null &) ; done"
    script = orphans + '; echo \'{"event": "up"}\'; exec sleep 600'
    running = run("sh", "-c", script)
    running.expect("up")
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    wait_for("one child alone", lambda: len(children.read_text().split()) == 1)
    running.process.terminate()
    assert running.wait() == 128 + signal.SIGTERM


def test_sigkill_of_run_does_not_kill_the_program(run: Starter) -> None:
    """A kernel of the program may be in flight, and its death would be its neighbours'."""
    running = run(*PYTHON, OBEDIENT)
    pid = running.expect("ready")["pid"]
    running.process.kill()
    running.wait()
    assert not gone(pid)
    os.kill(pid, signal.SIGKILL)


def test_what_a_program_prints_is_its_own(run: Starter) -> None:
    done = once("--", "sh", "-c", "echo out; echo err >&2")
    ours, theirs = done.stderr.splitlines()
    assert (done.stdout, theirs) == ("out\n", "err")
    assert ours.startswith("mpsguard run: ")


@contextmanager
def terminal(*arguments: str) -> Iterator[tuple[int, int]]:
    """`mpsguard run` at the keyboard of a terminal of its own: its pid, and the other end of the terminal."""
    pid, keyboard = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*RUN, *NOWHERE, *arguments])
    try:
        yield pid, keyboard
    finally:
        os.close(keyboard)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)


def read_until(keyboard: int, text: str) -> str:
    seen = b""
    while text.encode() not in seen:
        assert select.select([keyboard], [], [], 30)[0], seen
        seen += os.read(keyboard, 4096)
    return seen.decode()


READS = ("--", "sh", "-c", 'read line; echo "it read $line"; exit 9')


def test_a_program_that_wants_the_terminal_is_reported_and_can_be_ended() -> None:
    with terminal(*READS) as (pid, keyboard):
        read_until(keyboard, "--foreground")
        os.write(keyboard, b"\x03")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGINT


def test_in_the_foreground_it_has_the_terminal() -> None:
    with terminal("--foreground", *READS) as (pid, keyboard):
        os.write(keyboard, b"a line\n")
        read_until(keyboard, "it read a line")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
