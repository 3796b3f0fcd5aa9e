"""Sixty connections of one user that ask the vault as fast as it answers do not keep handshakes waiting."""

import os

import pytest

from mpsguard.vault.wire.address import socket_path
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=10, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

STANDBYS = 60
HANDSHAKES = 10
ROUNDS = 5
STORM = f"""
stranger = vault_attacks.Stranger(sys.argv[2])
send, answer, wire = stranger.send, stranger.answer, vault_attacks.wire
writer = stranger.session("large", 1)
# As much to write down as a user may have, for each request that changes something.
for number in range(63):
    memory = os.memfd_create("storm", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 4096)
    vault_attacks.memfd.fix_size(memory)
    assert send(writer, wire.Create(2, f"r{{number}}", vault_attacks.RegionLayout((4096,)), metadata=os.urandom(16000)))
    assert isinstance(answer(writer), wire.Proceed)
    assert send(writer, wire.Chunks(2, 1), (memory,))
    assert isinstance(answer(writer), wire.Done)
    os.close(memory)
standbys = {{}}
for number in range({STANDBYS}):
    sock = stranger.connect()
    assert send(sock, wire.Hello(1, wire.VERSION, "large", vault_attacks.LeaseRole.STANDBY, token=100 + number))
    assert isinstance(answer(sock), wire.Welcome)
    standbys[sock.fileno()] = sock
poller = select.poll()
for fd, sock in standbys.items():
    poller.register(fd, select.POLLIN)
    for _ in range(8):
        send(sock, wire.Ready(3))
answered = 0
os.set_blocking(0, False)
tell("storm")
while True:
    for fd, _ in poller.poll(10):
        assert isinstance(answer(standbys[fd]), wire.Done)
        answered += 1
        send(standbys[fd], wire.Ready(3))
    try:
        asked = os.read(0, 1)
    except BlockingIOError:
        continue
    tell("answered", count=answered)
"""
GOOD = """
tell("ready")
while os.read(0, 1):
    for _ in range(int(sys.argv[2])):
        sock, fds = client()
        assert fds
        sock.close()
    tell("served")
"""


def test_handshakes_go_on_beside_a_storm_of_requests() -> None:
    asks, tells = os.pipe()
    waits, goes = os.pipe()
    with (
        Guarded(domain="multiuser = true") as guarded,
        open(asks, "rb"),
        open(tells, "wb", buffering=0) as ask,
        open(waits, "rb"),
        open(goes, "wb", buffering=0) as go,
    ):
        guarded.start()
        guarded.client().expect("started")
        storm = attack(
            guarded,
            STORM,
            str(socket_path(guarded.run_directory)),
            imports="import select\nfrom tests.hostile import vault_attacks",
            stdin=asks,
        )
        storm.expect("storm")

        def answered() -> int:
            ask.write(b"?")
            count: int = storm.expect("answered")["count"]
            return count

        good = attack(guarded, GOOD, str(HANDSHAKES), uid=1000, stdin=waits)
        good.expect("ready")
        meanwhile = []
        for _ in range(ROUNDS):
            before = answered()
            go.write(b"!")
            good.expect("served")
            meanwhile.append(answered() - before)
        # A handshake takes ten turns of the guard's loop or more, and the user has one request in each: not sixty. More
        # are answered where the good client itself gets no processor.
        assert min(meanwhile) < HANDSHAKES * 3 * STANDBYS
