"""A client with an execve(2) that does not end: its start time in /proc cannot be read meanwhile (Linux 6.18)."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.hostile.stalled_files import StalledFiles
from tests.integration.guarded import Guarded, Program
from tests.integration.peer import Peer

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here"),
]

EXECUTE = """
# Its close does not return, and execve(2) closes it.
file = os.open(sys.argv[2], os.O_RDONLY)
os.execv("/bin/sleep", ["sleep", "600"])
"""

IN_THE_HANDSHAKE = (
    """
for _ in range(4):
    sock = connect()
    sock.send(b"OUTBCRED\\0")
    sock.send(struct.pack("<i", 2))
    os.set_inheritable(sock.detach(), True)
"""
    + EXECUTE
)
"""Connects and introduces itself, and then executes a program. A real attacker is fast enough for that most times; here
the guard is stopped meanwhile."""

AS_A_CLIENT = (
    """
sock, fds = client()
os.set_inheritable(sock.fileno(), True)
tell("started")
signal.sigwait([signal.SIGUSR1])
"""
    + EXECUTE
)


@contextmanager
def attacked() -> Iterator[tuple[Guarded, StalledFiles]]:
    with Guarded(domain="multiuser = true") as guarded:
        mount = guarded.root / "stalled"
        mount.mkdir()
        guarded.start()
        guarded.client().expect("started")
        with StalledFiles(mount, flushes=False) as stalled:
            yield guarded, stalled


def hang(guarded: Guarded, stalled: StalledFiles, source: str, uid: int) -> Program:
    program = attack(
        guarded, "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])" + source, str(stalled.file), uid=uid
    )
    if source is AS_A_CLIENT:
        program.expect("started")
        os.kill(program.pid, signal.SIGUSR1)
    assert stalled.closing.acquire(timeout=30), "it executes the program"
    return program


def serves(guarded: Guarded) -> None:
    """Other users' clients are served as ever."""
    for _ in range(5):
        with Peer(guarded.public, deadline=10.0) as good:
            assert good.connect_as_client()


@pytest.mark.parametrize("users", [1, 6])
def test_a_handshake_with_a_process_that_does_not_end_its_exec_delays_no_other(users: int) -> None:
    """With six users, more of their reads are held up than there are readers."""
    with attacked() as (guarded, stalled):
        os.kill(guarded.guard.pid, signal.SIGSTOP)
        try:
            for number in range(users):
                for _ in range(2):
                    hang(guarded, stalled, IN_THE_HANDSHAKE, 60000 + number)
        finally:
            os.kill(guarded.guard.pid, signal.SIGCONT)
        serves(guarded)
        wait_for(
            "all are refused",
            lambda: guarded.metric("mpsguard_refused_connections_total", reason="unidentified") == users * 8,
        )
        serves(guarded)
        assert guarded.stop() == 0


def test_a_client_that_does_not_end_its_exec_holds_up_neither_the_guard_nor_its_successor() -> None:
    with attacked() as (guarded, stalled):
        client = hang(guarded, stalled, AS_A_CLIENT, 60000)
        serves(guarded)
        # It is listed, asked about, and ended, like any other.
        wait_for("it is known", lambda: client.pid in [each["process"]["pid"] for each in guarded.clients()])
        guarded.ctl("terminate", str(client.pid), "--signal", "KILL", deadline=30)
        serves(guarded)
        guarded.kill()
        guarded.start()
        serves(guarded)
        assert guarded.stop() == 0
