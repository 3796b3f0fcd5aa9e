"""What the vendor's own control daemon does by itself on a machine without a GPU: the ground the guard stands on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpsguard.guard.lanes import mps_protocol
from mpsguard.guard.lanes.mps_protocol import PeerKind
from mpsguard.linux.identity import Credentials
from mpsguard.linux.sockets import seqpacket
from tests.harness.waiting import wait_for
from tests.vendor import VendorMps

pytestmark = pytest.mark.vendor


@dataclass(frozen=True)
class Daemon:
    """A control daemon that runs."""

    mps: VendorMps
    pipes: Path
    logs: Path
    environment: dict[str, str]

    def ask(self, command: str) -> str:
        return self.mps.ask(command, self.environment)


@pytest.fixture
def daemon(vendor_mps: VendorMps, pipe_directory: Path, tmp_path: Path) -> Iterator[Daemon]:
    environment = vendor_mps.environment(pipe_directory, tmp_path)
    # It goes to the background and keeps what it was given as output: a pipe would never see its end.
    subprocess.run(
        [str(vendor_mps.control), "-d"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=10,
        check=True,
    )
    pid = pid_of_listener(pipe_directory / "control")
    assert not has_ended(pid, within_s=0.0)
    yield Daemon(vendor_mps, pipe_directory, tmp_path, environment)
    if not has_ended(pid, within_s=0.0):
        os.kill(pid, signal.SIGKILL)


def pid_of_listener(path: Path) -> int:
    """Return the pid that listens on the socket, from the kernel: branch 535 writes no pid file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.connect(str(path))
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], "little")


def has_ended(pid: int, *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in {"Z", "X"}:  # it may never be reaped: pid 1 of a container need not
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)


def test_default_thread_percentage_is_kept(daemon: Daemon) -> None:
    assert daemon.ask("get_default_active_thread_percentage") == "100.0"
    assert daemon.ask("set_default_active_thread_percentage 50") == "50.0"
    assert daemon.ask("get_default_active_thread_percentage") == "50.0"


def test_no_server_without_a_client(daemon: Daemon) -> None:
    assert daemon.ask("get_server_list") == ""
    assert daemon.ask("ps") == "Server not found"


def test_unknown_command_is_answered(daemon: Daemon) -> None:
    assert "Unknown command" in daemon.ask("no_such_command")


def test_server_exits_at_once_without_a_gpu(daemon: Daemon) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU: its server would stay")
    daemon.ask(f"start_server -uid {os.getuid()}")
    log = daemon.logs / "control.log"
    deadline = time.monotonic() + 10
    while "exited with status 1" not in log.read_text(encoding="utf-8", errors="replace"):
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8", errors="replace")
        time.sleep(0.02)
    assert daemon.ask("get_server_list") == ""


def test_pipe_directory_has_the_public_names(daemon: Daemon) -> None:
    names = {path.name for path in daemon.pipes.iterdir()}
    assert {"control", "control_privileged", "control_lock", "log"} <= names
    # The pid file came between the branches: the adoption of a daemon must not count on it.
    assert ("nvidia-cuda-mps-control.pid" in names) == (daemon.mps.branch != "535")


def test_quit_ends_the_daemon_and_leaves_its_sockets(daemon: Daemon) -> None:
    pid = pid_of_listener(daemon.pipes / "control")
    daemon.ask("quit")
    assert has_ended(pid, within_s=10)
    # What stays behind: a client that connects now is refused, and runs without MPS.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late, pytest.raises(ConnectionRefusedError):
        late.connect(str(daemon.pipes / "control"))


def _connected(daemon: Daemon) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(10)
    peer.connect(str(daemon.pipes / "control"))
    return peer


def _introduced(daemon: Daemon, kind: PeerKind) -> socket.socket:
    """Connect, say all that is to be said before anything is heard, and hear the greeting; return the connection."""
    with _connected(daemon) as before:
        greeting = before.recv(64)
    peer = _connected(daemon)
    credentials = Credentials(os.getpid(), os.geteuid(), os.getegid())
    seqpacket.send(peer, mps_protocol.credentials_word(greeting), sender=credentials)
    seqpacket.send(peer, mps_protocol.encode_kind(kind), sender=credentials)
    assert peer.recv(64) == greeting
    return peer


def test_an_introduction_may_come_before_the_greeting(daemon: Daemon) -> None:
    log = daemon.logs / "control.log"
    with _introduced(daemon, PeerKind.CLIENT):
        wait_for("it is a client", lambda: f"NEW CLIENT {os.getpid()} " in log.read_text())


def test_a_debuggee_is_sent_away_while_there_is_no_server(daemon: Daemon) -> None:
    log = daemon.logs / "control.log"
    with _introduced(daemon, PeerKind.DEBUGGEE) as peer:
        assert peer.recv(64) == b""
        # It may be sent away before that is written down.
        wait_for("it was a debuggee", lambda: f"NEW DEBUGGEE {os.getpid()} " in log.read_text())
