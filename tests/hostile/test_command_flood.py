"""Hundreds of command-line sessions of one user, each with commands waiting, and the guard has something to say."""

import os
from functools import partial

import pytest

from fault_injection.sim.script import Script
from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=25, reason="the daemon is held up for eight seconds"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

SESSIONS = 400
FLOOD = f"""
kept = []
for _ in range({SESSIONS}):
    kept.append(connect())
    introduce(kept[-1], 4)
    command(kept[-1], "get_default_client_priority")
tell("flooding")
signal.pause()
"""
REFUSED = SESSIONS - 257
"""At least so many are told that too many wait: one is being served, and the line had 256 places for all."""


def test_the_guards_own_commands_are_carried_out() -> None:
    with Guarded() as guarded:
        guarded.start()
        guarded.client().expect("started")
        # The daemon takes its time for the first of them.
        Script(guarded.pipe).hang("get_default_client_priority", seconds=8)
        attack(guarded, FLOOD).expect("flooding")
        refused = partial(guarded.metric, "mpsguard_refused_connections_total", reason="failed")
        wait_for("all of them wait, or are refused", lambda: refused() >= REFUSED)
        done = guarded.ctl("mps", "get_server_list", deadline=60)
        assert done.returncode == 0, done.stderr
