"""A process that comes to both lanes of a domain at once, before the guard knows it: it is a client of one lane."""

import os

import pytest

from tests.hostile.attacker import attack
from tests.integration.sim.test_takeover import FailoverPair

pytestmark = [
    pytest.mark.slow(seconds=30, reason="starts two lanes"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

IMPORTS = """
from pathlib import Path
from fault_injection.sim.cuda import CudaProcess
from mpsguard.client import join
"""
WRITES = """
cuda = CudaProcess(Path(PUBLIC))
cuda.init()
cuda.create_context(1)
with join("place", socket=sys.argv[2]) as session:
    session.ready()
    session.publish(b"1")
    tell("writes")
    signal.pause()
"""
"""A client that writes a session: its user has two places on the lane for standbys."""
COMES_TO_BOTH = """
socks = [connect(), connect("standby/control")]
for sock in socks:
    sock.recv(64)
    sock.send(b"OUTBCRED\\0")
for sock in socks:
    sock.send(struct.pack("<i", 2))
servers = []
for sock in socks:
    files = socket.recv_fds(sock, 64, 4)[1]
    if files:
        server = Channel.adopt(files[0])
        server.receive()
        server.send_credentials()
        server.send_int(0)
        server.send_int(255)
        server.receive_int()
        servers.append(server)
tell("came")
signal.pause()
"""


def test_a_process_that_comes_to_both_lanes_at_once_has_a_server_of_one() -> None:
    with FailoverPair(domain="multiuser = true\n") as pair:
        pair.start()
        writer = attack(pair, WRITES, pair.environment["MPSGUARD_VAULT"], imports=IMPORTS)
        writer.expect("writes")
        for _ in range(5):
            both = attack(pair, COMES_TO_BOTH, imports="from fault_injection.sim.wire import Channel")
            both.expect("came")
            logs = {name: pair.root / "log" / name / "server.log" for name in ("default-0", "default-1")}
            came_to = [name for name, log in logs.items() if f"SIMULATED levers of {both.pid}: " in log.read_text()]
            assert came_to == [pair.lane_of(both)]
            both.close()
