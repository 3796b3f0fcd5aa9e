"""How many passes of the guard's event loop a handshake waits for: each is as long as others' floods make it."""

from pathlib import Path

import pytest

from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = pytest.mark.slow(seconds=15, reason="each pass of the guard is long")

PROGRAMS, CONNECTIONS = 6, 4
CONNECT = f"""
passes = mmap.mmap(os.open(sys.argv[2], os.O_RDONLY), 8, prot=mmap.PROT_READ)
kept, took = [], []
for _ in range({CONNECTIONS}):
    sock = connect()
    sock.recv(64)
    # It is greeted in the pass that accepts it.
    before = struct.unpack("Q", passes)[0] - 1
    sock.send(b"OUTBCRED\\0")
    sock.send(struct.pack("<i", 2))
    kept.append((sock, socket.recv_fds(sock, 64, 4)))
    took.append(struct.unpack("Q", passes)[0] - before)
    sock.send(struct.pack("<i", 0))
tell("took", passes=took)
signal.pause()
"""


def test_a_handshake_takes_three_passes_and_two_more_for_a_process_that_is_not_known(tmp_path: Path) -> None:
    count = tmp_path / "passes"
    count.write_bytes(bytes(8))
    with Guarded(environment={"PASSES": str(count)}) as guarded:
        guarded.process.module = "tests.hostile.counting_guard"
        guarded.start()
        guarded.client("--iterations", "1").expect("connected")
        took = [attack(guarded, CONNECT, str(count), uid=0).expect("took")["passes"] for _ in range(PROGRAMS)]
    # A pass for something else may come in between.
    assert min(passes for _, *known in took for passes in known) == 3, took
    assert min(unknown for unknown, *_ in took) == 5, took
