"""Processes that become clients and stay cost the guard no more than their user's share."""

import os

import pytest

from mpsguard.guard.broker.broker import MAX_CLIENTS_OF_A_USER
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=15, reason="starts more clients than a user may have"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

MANY = f"""
told, tell_parent = os.pipe()
served = 0
for number in range({MAX_CLIENTS_OF_A_USER} + 8):
    if not os.fork():
        try:
            kept = client()
            served = b"1" if kept[1] else b"0"
        except OSError:
            served = b"0"
        os.write(tell_parent, served)
        # Ends with its parent, which the test ends.
        os.close(tell_parent)
        os.read(0, 1)
        os._exit(0)
    served += int(os.read(told, 1))
tell("served", count=served)
os.read(0, 1)
"""


def test_a_user_has_its_share_of_clients_and_others_have_theirs() -> None:
    ends, end = os.pipe()
    with Guarded(domain="multiuser = true") as guarded, open(ends, "rb"), open(end, "wb"):
        guarded.start()
        many = attack(guarded, MANY, stdin=ends)
        assert many.next(100)["count"] == MAX_CLIENTS_OF_A_USER
        assert guarded.metric("mpsguard_refused_connections_total", reason="share") == 8
        other = attack(guarded, "sock, fds = client(); tell('served', fds=len(fds))", uid=65533)
        assert other.expect("served")["fds"] == 1
