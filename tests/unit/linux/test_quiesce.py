"""A process stands still when none of its threads can write to a peer, and not before."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.linux.processes.quiesce import Quiesce
from tests.harness.waiting import wait_for

THREADS = """
import threading
def spin():
    while True: pass
for _ in range(4):
    threading.Thread(target=spin, daemon=True).start()
print("!", flush=True)
spin()
"""


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    with started(THREADS) as process:
        yield process
        process.kill()


def started(code: str, **more: int) -> "subprocess.Popen[bytes]":
    fds = tuple(more.values())
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, fds)], stdout=subprocess.PIPE, pass_fds=fds)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"!"
    return process


def state(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2]


def test_a_stopped_one_does_with_all_its_threads(busy: subprocess.Popen[bytes]) -> None:
    busy.send_signal(signal.SIGSTOP)
    watched = Quiesce()
    wait_for("the standstill", lambda: watched.reached(busy.pid))
    assert state(busy.pid) == "T"


def test_one_that_has_ended_does_reaped_or_not(busy: subprocess.Popen[bytes]) -> None:
    busy.kill()
    wait_for("the standstill", lambda: Quiesce().reached(busy.pid))
    busy.wait()
    assert Quiesce().reached(busy.pid)


def test_one_that_waits_to_write_does_not(busy: subprocess.Popen[bytes]) -> None:
    # Not stopped here, so that it stays in the call: what would be a wait in the driver that no signal ends.
    ours, theirs = socket.socketpair()
    code = "import os,sys; print('!', end='', flush=True); os.write(int(sys.argv[1]), bytes(1 << 26))"
    with ours, theirs, started(code, fd=theirs.fileno()) as writer:
        wait_for("its sleep", lambda: state(writer.pid) == "S")
        watched = Quiesce()
        for _ in range(20):
            assert not watched.reached(writer.pid)
        writer.kill()
    assert busy.poll() is None


def test_one_that_waits_in_a_call_that_cannot_write_does_and_that_holds() -> None:
    code = "import time; print('!', end='', flush=True); time.sleep(3600)"
    with started(code) as sleeper:
        wait_for("its sleep", lambda: state(sleeper.pid) == "S")
        watched = Quiesce()
        wait_for("the standstill", lambda: watched.reached(sleeper.pid))
        assert watched.reached(sleeper.pid)
        sleeper.kill()


def test_one_that_computes_for_longer_than_any_write_does() -> None:
    # Not stopped: from outside, its loop looks like one in the driver that never sleeps. One thread: those that wait
    # for the interpreter's lock are still, and may be all if it changes hands between two looks.
    with started("print('!', end='', flush=True)\nwhile True: pass") as spinner:
        watched = Quiesce()
        assert not watched.reached(spinner.pid)
        wait_for("the standstill", lambda: watched.reached(spinner.pid))
        spinner.kill()


def test_what_cannot_be_looked_at_is_not_taken_for_still() -> None:
    if os.geteuid() == 0:
        pytest.skip("root may look at everybody's system calls")
    assert not Quiesce().reached(1)
