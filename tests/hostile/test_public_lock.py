"""A user that waits for the lock that a stock daemon has left in the public directory, open to all, and keeps it."""

import os

import pytest

from tests.harness.guard_process import GuardProcess
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

WAITER = """
lock = os.open(os.path.join(PUBLIC, "control_lock"), os.O_RDWR)
tell("waiting")
fcntl.lockf(lock, fcntl.LOCK_EX)
tell("locked")
signal.pause()
"""


def test_the_next_guard_starts_and_there_is_still_only_one() -> None:
    with Guarded() as guarded:
        guarded.public.mkdir()
        lock = guarded.public / "control_lock"
        lock.touch()
        lock.chmod(0o666)
        guarded.start()
        waiter = attack(guarded, WAITER)
        waiter.expect("waiting")
        guarded.kill()
        waiter.expect("locked")
        first = guarded.start()
        assert guarded.client("--iterations", "3").wait() == 0
        assert guarded.lane()["state"] == "ACTIVE"
        second = GuardProcess(guarded.config, guarded.root)
        second.start(guarded.environment, ready=False)
        assert second.popen.wait(30) != 0, "a second guard has no business here"
        assert second.log.read_text().count(f"process {first} holds") == 1
        assert guarded.stop() == 0
