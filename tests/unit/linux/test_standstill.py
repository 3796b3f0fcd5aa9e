"""A process stands still when all its threads are stopped, and not before."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from mpsguard.linux import standstill

DEADLINE = 30.0
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
    with subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"!"
        yield process
        process.kill()


def until_still(pid: int) -> None:
    due = time.monotonic() + DEADLINE
    while not standstill.stands_still(pid):
        assert time.monotonic() < due
        time.sleep(0.001)


def test_a_process_at_work_does_not(busy: subprocess.Popen[bytes]) -> None:
    assert not standstill.stands_still(busy.pid)
    assert not standstill.stands_still(busy.pid, or_waits=True)


def test_a_stopped_one_does_with_all_its_threads(busy: subprocess.Popen[bytes]) -> None:
    busy.send_signal(signal.SIGSTOP)
    until_still(busy.pid)
    busy.send_signal(signal.SIGCONT)
    due = time.monotonic() + DEADLINE
    while standstill.stands_still(busy.pid):
        assert time.monotonic() < due


def test_one_that_has_ended_does_reaped_or_not(busy: subprocess.Popen[bytes]) -> None:
    busy.kill()
    until_still(busy.pid)
    busy.wait()
    assert standstill.stands_still(busy.pid)
