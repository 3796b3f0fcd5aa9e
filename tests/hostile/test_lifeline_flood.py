"""Clients of one user that crash by the hundred, so that the lifeline of another's client is let go for theirs."""

import os
import signal

import pytest

from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=60, reason="starts and kills hundreds of clients"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

CLIENT = """
def client():
    files = [os.open("/dev/full", os.O_RDWR | os.O_APPEND), os.open("/dev/full", os.O_RDWR)]
    sock = connect()
    introduce(sock, 2)
    socket.recv_fds(sock, 64, 4)
    sock.send(struct.pack("<i", 0))
    return files
"""
VICTIM = (
    CLIENT
    + """
files = client()
tell("came")
signal.pause()
"""
)
FLOOD = (
    CLIENT
    + """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for wave in range(13):
    children = []
    for _ in range(20):
        child = os.fork()
        if not child:
            files = client()
            signal.pause()
        children.append(child)
    tell("came", children=children)
    signal.sigwait([signal.SIGUSR1])
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
tell("done")
"""
)


def test_the_victims_lifeline_is_kept() -> None:
    with Guarded(domain="[domain.lifelines]\ncrash_hold = 3600") as guarded:
        guarded.process.module = "tests.hostile.with_driver"
        guarded.start()

        def watched(pids: list[int]) -> bool:
            watches = guarded.asked("clients")["watches"]
            return set(pids) <= {each["pid"] for each in watches if each["watched"]}

        victim = attack(guarded, VICTIM, uid=65533)
        victim.expect("came")
        wait_for("an eye on the victim", lambda: watched([victim.pid]))
        victim.process.kill()
        victim.process.wait()
        attacker = attack(guarded, FLOOD)
        while (told := attacker.expect("came", "done"))["event"] != "done":
            wait_for("an eye on each", lambda: watched(told["children"]))  # it is called at once
            os.kill(attacker.pid, signal.SIGUSR1)
        wait_for("their ends", lambda: not guarded.clients())
        held = [each["pid"] for each in guarded.asked("lifelines")["lifelines"]]
        assert victim.pid in held
        assert len(held) == 1 + 64
