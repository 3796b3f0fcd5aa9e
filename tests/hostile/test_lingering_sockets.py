"""A descriptor of a TCP socket that lingers, its buffer full: closing the last copy of it takes an hour."""

import os

import pytest

from mpsguard.linux.sockets import seqpacket
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded
from tests.integration.peer import Peer

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

IMPORTS = "from tests.hostile.lingering import lingering\n"
LINGERING = """
kept = []
refused = 0
for number in range(int(sys.argv[2])):
    sock = connect()
    kept.append(sock)
    trap, other = lingering()
    kept.append(other)
    with trap:
        try:
            if number % 2:
                # The guard ends the connection for the first packet, and never reads the second.
                sock.send(b"garbage")
            socket.send_fds(sock, [b"OUTBCRED\\0"], [trap.fileno()] * 3)
        except (PermissionError, BrokenPipeError):
            refused += 1
            # Its last copy is closed here: the attack is over.
            trap.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
tell("sent", refused=refused)
signal.pause()
"""

CONNECTIONS = 8


def serves(guarded: Guarded) -> None:
    """A good client is served while the attack goes on, and the guard ends in order after that."""
    for _ in range(5):
        with Peer(guarded.public) as good:
            assert good.connect_as_client()
    assert guarded.stop() == 0


def test_lingering_sockets_that_wait_for_the_guard_do_not_stop_it() -> None:
    """They were sent before this guard's time, so that no kernel could keep them out."""
    with Guarded() as guarded:
        guarded.hold_sockets()
        attack(guarded, LINGERING, str(CONNECTIONS), imports=IMPORTS).expect("sent")
        guarded.start()
        guarded.client().expect("started")
        serves(guarded)


def test_lingering_sockets_sent_to_a_running_guard_do_not_stop_it() -> None:
    with Guarded() as guarded:
        guarded.start()
        guarded.client().expect("started")
        told = attack(guarded, LINGERING, str(CONNECTIONS), imports=IMPORTS).expect("sent")
        if seqpacket.kernel_refuses_descriptors():
            assert told["refused"] == CONNECTIONS
        serves(guarded)
