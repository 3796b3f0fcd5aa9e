"""Command lines that do nothing hold no place against a peer that wants something, and not for good."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded
from tests.integration.peer import Peer

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

PLACES = 64
IDLE = """
held = []
for _ in range(200):
    try:
        sock = connect()
        introduce(sock, 4)
        held.append(sock)
    except OSError:
        pass
tell("holding")
for sock in held:
    try:
        while sock.recv(64):
            pass
    except OSError:
        pass
tell("all let go")
"""


@pytest.fixture
def guarded(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    with Guarded() as running:
        running.write_config(policy=f"max_connections = {PLACES}\n{request.param}")
        running.start()
        yield running


@pytest.mark.parametrize("guarded", [""], indirect=True)
def test_users_that_hold_idle_command_lines_keep_no_client_out(guarded: Guarded) -> None:
    attackers = [attack(guarded, IDLE, uid=uid) for uid in (65533, 65534, 65532, 65531, 65530)]
    for attacker in attackers:
        attacker.expect("holding")
    # Of another user, of root, and a command line of root's.
    other = attack(guarded, "sock = connect(); introduce(sock, 2); tell('answered', got=len(sock.recv(64)))", uid=65529)
    assert other.expect("answered")["got"] > 0
    with Peer(guarded.public) as peer:
        assert peer.connect_as_client()
    assert guarded.ui("get_server_list").returncode == 0


@pytest.mark.parametrize("guarded", ["command_line_idle = 1.0"], indirect=True)
def test_an_idle_command_line_is_ended(guarded: Guarded) -> None:
    attacker = attack(guarded, IDLE)
    attacker.expect("holding")
    attacker.expect("all let go")
