"""Processes that come to both lanes of a domain: at once, before the guard knows them, and with a second driver."""

import os
import subprocess
import time

import pytest

from tests.harness.guard_process import GuardProcess
from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.integration.sim.test_takeover import FailoverPair, working

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
ASTRIDE = """
first, second = CudaProcess(Path(PUBLIC)), CudaProcess(Path(PUBLIC) / "second")
for driver in (first, second):
    driver.init()
    driver.create_context(1)
tell("connected")
os.read(0, 1)
second.launch(*((3600.0, "") if sys.argv[2] == "works" else (0.0, "null")))
tell("launched")
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


def test_a_fault_in_a_second_driver_leaves_the_sessions_of_the_first_one_s_lane_alone() -> None:
    """The driver's line names the process: were it taken for one of its own lane, both lanes' sessions would end."""
    with FailoverPair(domain='multiuser = true\nsecond_driver = "hot"\n') as pair:
        pair.process = GuardProcess(pair.config, pair.root, module="tests.integration.slurm.with_kernel_log")
        fifo = pair.root / "kmsg"
        os.mkfifo(fifo)
        pair.environment["KERNEL_LOG"] = str(fifo)
        with open(os.open(fifo, os.O_RDWR | os.O_CLOEXEC), "wb", buffering=0) as kernel_log:
            pair.start()
            first, second = working(pair)
            astride = attack(pair, ASTRIDE, "faults", imports=IMPORTS, stdin=subprocess.PIPE)
            astride.expect("connected")
            wait_for("it is on both", lambda: [each for each in pair.clients() if each["second_lane"] == "default-1"])
            xid = f"NVRM: Xid (PCI:0000:41:00): 31, pid={astride.pid}, name=x, Ch 00000008, intr 00000000. MMU Fault"
            kernel_log.write(f"3,1,{int(time.monotonic() * 1e6)},-;{xid}\n".encode())
            assert astride.process.stdin is not None
            astride.process.stdin.write(b"x")
            astride.process.stdin.flush()
            # It waits, on the lane that was hit.
            assert second.expect("fenced", "working", "died")["event"] == "fenced"
            assert [told for told in pair.events("takeover") if told["data"]["lane"] == "default-0"] == []
            assert first.process.poll() is None
            assert pair.active() == "default-0"


def test_a_client_with_work_in_its_second_driver_is_ended_on_both_lanes() -> None:
    """A signal with a kernel in flight is a fault of all clients of that lane."""
    with FailoverPair(domain='multiuser = true\nsecond_driver = "hot"\n') as pair:
        pair.start()
        first, second = working(pair)
        astride = attack(pair, ASTRIDE, "works", imports=IMPORTS, stdin=subprocess.PIPE)
        astride.expect("connected")
        wait_for("it is on both", lambda: [each for each in pair.clients() if each["second_lane"] == "default-1"])
        assert astride.process.stdin is not None
        astride.process.stdin.write(b"x")
        astride.process.stdin.flush()
        astride.expect("launched")
        assert pair.ctl("terminate", str(astride.pid), "--signal", "TERM", "--grace", "1").returncode == 0
        assert astride.process.wait() != 0
        logs = {name: pair.root / "log" / name / "control.log" for name in ("default-0", "default-1")}
        assert all(
            f"terminate_client {server} {astride.pid}" in logs[name].read_text() for name, server in servers(pair)
        )
        wait_for("it is gone", lambda: astride.pid not in {each["process"]["pid"] for each in pair.clients()})
        # Its end by a signal is one; a fault of the other lane's server would be another.
        assert [each["fault_class"] for each in pair.asked("incidents")["incidents"]] == ["process"]
        assert [first.process.poll(), second.process.poll()] == [None, None]


def servers(pair: FailoverPair) -> list[tuple[str, int]]:
    """The server of each lane."""
    return [(lane["name"], each["process"]["pid"]) for lane in pair.asked("lanes")["lanes"] for each in lane["servers"]]
