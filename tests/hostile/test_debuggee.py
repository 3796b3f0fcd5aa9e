"""A client that says it is one under a debugger: it gets a socket to the server like any other."""

import os

import pytest

from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

DEBUGGEE = """
sock = connect()
introduce(sock, 3)
_, files, _, _ = socket.recv_fds(sock, 64, 4)
sock.send(struct.pack("<i", 0))
tell("handed_over", files=len(files))
signal.pause()
"""


def test_it_is_a_client_that_the_guard_knows() -> None:
    with Guarded() as guarded:
        guarded.start()
        debuggee = attack(guarded, DEBUGGEE)
        assert debuggee.expect("handed_over")["files"] == 1
        wait_for("it is known", lambda: debuggee.pid in {each["process"]["pid"] for each in guarded.clients()})
        debuggee.process.kill()
        wait_for("and its end", lambda: debuggee.pid not in {each["process"]["pid"] for each in guarded.clients()})
