"""Newcomers wait while a lane recovers: those that came too early got error 46 (cudaErrorDevicesUnavailable).

Seen on H100s, 580.159.04, and answered alike by the simulation: in the time between a fault and the server's notice of
it a client is accepted, and its context is refused.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fault_injection.sim.script import Script
from tests.harness.guard_process import GuardProcess
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program

UNAVAILABLE = 46
LONE = """
import json, signal, sys
from pathlib import Path
from fault_injection.sim.cuda import CudaProcess
cuda = CudaProcess(Path(sys.argv[1]))
cuda.init()
cuda.create_context(1)
cuda.launch(3600.0)
print(json.dumps({"event": "started"}), flush=True)
signal.pause()
"""
"""A client with a kernel in flight from the moment that it says so."""


NEWCOMER = """
import json, sys
from pathlib import Path
from fault_injection.sim.cuda import CudaFailureError, CudaProcess
cuda = CudaProcess(Path(sys.argv[1]))
print(json.dumps({"event": "prepared"}), flush=True)
sys.stdin.readline()
try:
    cuda.init()
    cuda.create_context(1)
    cuda.launch(0.001)
    cuda.synchronize()
    print(json.dumps({"event": "started"}), flush=True)
except CudaFailureError as failure:
    print(json.dumps({"event": "died", "error": failure.code}), flush=True)
"""
"""A client that connects at once when it is told to: a Python process' start takes longer than the window."""


def at_work(guarded: Guarded) -> Program:
    lone = guarded.program([sys.executable, "-c", LONE, str(guarded.public)])
    lone.expect("started")
    return lone


def prepared(guarded: Guarded, directory: Path) -> Program:
    newcomer = guarded.program([sys.executable, "-c", NEWCOMER, str(directory)], stdin=subprocess.PIPE)
    newcomer.expect("prepared")
    return newcomer


def go(newcomer: Program) -> None:
    assert newcomer.process.stdin is not None
    newcomer.process.stdin.write(b"go\n")
    newcomer.process.stdin.close()


def comes(newcomer: Program) -> tuple[str, object]:
    go(newcomer)
    return end(newcomer)


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running


@contextmanager
def held_for(seconds: float) -> Iterator[Guarded]:
    """A guard that holds newcomers for so long after an end that may have left work."""
    with Guarded(environment={"HELD_FOR": str(seconds)}) as guarded:
        guarded.process = GuardProcess(guarded.config, guarded.root, module="tests.integration.sim.held_for")
        guarded.start()
        yield guarded


def end(client: Program) -> tuple[str, object]:
    said = client.expect("started", "bare", "died")
    return said["event"], said.get("error")


def test_without_the_guard_the_first_newcomer_after_a_lone_clients_kill_is_refused(guarded: Guarded) -> None:
    """At the lane itself, past the guard."""
    first, second = prepared(guarded, guarded.pipe), prepared(guarded, guarded.pipe)
    lone = at_work(guarded)
    Script(guarded.pipe).notice_late(6)
    lone.process.kill()
    lone.process.wait()
    assert comes(first) == ("died", UNAVAILABLE)
    wait_for("the server's notice", lambda: "Destroy server context" in (guarded.log / "server.log").read_text())
    assert comes(second) == ("started", None)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_the_first_newcomer_after_a_lone_clients_kill_is_served(how: signal.Signals) -> None:
    with held_for(3.0) as guarded:
        for _ in range(2):
            newcomer = prepared(guarded, guarded.public)
            lone = at_work(guarded)
            lone.process.send_signal(how)
            lone.process.wait()
            assert comes(newcomer) == ("started", None)


def test_a_newcomer_after_a_client_that_ended_well_does_not_wait() -> None:
    # One that is held is held for an hour.
    with held_for(3600.0) as guarded:
        for _ in range(2):
            client = guarded.client("--iterations", "1")
            assert end(client) == ("started", None)
            assert client.wait() == 0
        lone = at_work(guarded)
        lone.process.kill()
        assert lone.wait() == -signal.SIGKILL
        wait_for("the end is known", lambda: not guarded.clients())
        held = prepared(guarded, guarded.public)
        go(held)
        wait_for("it waits", lambda: guarded.events("client_parked"))
        assert held.silent()


def test_a_stranger_that_crashes_without_end_holds_no_newcomer_up_for_long(guarded: Guarded) -> None:
    crashing = guarded.program([sys.executable, "-c", CRASHES, str(guarded.public)])
    crashing.expect("crashed")
    # Three connections, of which two wait for a second each at most; else none would be served while there are crashes.
    assert end(guarded.client("--iterations", "1")) == ("started", None)
    assert crashing.process.poll() is None


CRASHES = """
import json, os, signal, subprocess, sys, time
child = '''
import os, signal, socket, struct, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(os.path.join(sys.argv[1], "control"))
sock.recv(64); sock.send(b"OUTBCRED\\\\0"); sock.send(struct.pack("<i", 2))
socket.recv_fds(sock, 64, 4)
os.kill(os.getpid(), signal.SIGKILL)
'''
while True:
    subprocess.run([sys.executable, "-c", child, sys.argv[1]])
    print(json.dumps({"event": "crashed"}), flush=True)
"""


@pytest.fixture
def with_kernel_log() -> Iterator[tuple[Guarded, int]]:
    """A guard that reads a stand-in for the kernel log, and a descriptor to write that."""
    with Guarded() as guarded:
        guarded.process = GuardProcess(guarded.config, guarded.root, module="tests.integration.slurm.with_kernel_log")
        fifo = guarded.root / "kmsg"
        os.mkfifo(fifo)
        writer = os.open(fifo, os.O_RDWR | os.O_CLOEXEC)
        guarded.environment["KERNEL_LOG"] = str(fifo)
        try:
            guarded.start()
            yield guarded, writer
        finally:
            os.close(writer)


def test_a_fault_on_another_gpu_holds_newcomers_until_the_server_has_dealt_with_it(
    with_kernel_log: tuple[Guarded, int],
) -> None:
    """Its server says ACTIVE for seconds after a memory fault on one of two GPUs, and refuses contexts on the other."""
    guarded, kernel_log = with_kernel_log
    client = guarded.client()
    client.expect("started")
    script = Script(guarded.pipe)
    script.make_unavailable()
    xid = f"NVRM: Xid (PCI:0000:41:00): 31, pid={client.pid}, name=x, Ch 00000008, intr 00000000. MMU Fault"
    os.write(kernel_log, f"3,1,{int(time.monotonic() * 1e6)},-;{xid}\n".encode())
    guarded.lane_in("RECOVERING")
    newcomer = guarded.client("--iterations", "1")
    wait_for("it waits", lambda: guarded.asked("status")["domains"][0]["parked"])
    script.force_fault()
    guarded.lane_in("FAULT")
    assert newcomer.silent()
    script.clear()
    assert end(newcomer) == ("started", None)
    guarded.lane_in("ACTIVE")


def test_a_sign_that_no_fault_of_the_server_follows_holds_newcomers_for_ten_seconds_at_most(
    with_kernel_log: tuple[Guarded, int],
) -> None:
    guarded, kernel_log = with_kernel_log
    client = guarded.client()
    client.expect("started")
    xid = f"NVRM: Xid (PCI:0000:41:00): 31, pid={client.pid}, name=x, Ch 00000008, intr 00000000. MMU Fault"
    os.write(kernel_log, f"3,1,{int(time.monotonic() * 1e6)},-;{xid}\n".encode())
    guarded.lane_in("RECOVERING")
    assert end(guarded.client("--iterations", "1")) == ("started", None)
    guarded.lane_in("ACTIVE")


def test_a_server_that_takes_no_notice_of_the_fault_of_a_lone_clients_work_is_ended(
    with_kernel_log: tuple[Guarded, int],
) -> None:
    """Else the next client's context meets the fault, as after a client with an endless kernel on an H100."""
    guarded, kernel_log = with_kernel_log
    newcomer = prepared(guarded, guarded.public)
    lone = at_work(guarded)
    (server,) = wait_for("its server", lambda: guarded.lane()["servers"])
    Script(guarded.pipe).notice_late(3600)
    lone.process.kill()
    lone.process.wait()
    wait_for("the end is known", lambda: not guarded.clients())
    pid = server["process"]["pid"]
    xid = f"NVRM: Xid (PCI:0000:41:00): 31, pid={pid}, name=x, Ch 00000008, intr 00000000. MMU Fault"
    os.write(kernel_log, f"3,1,{int(time.monotonic() * 1e6)},-;{xid}\n".encode())
    guarded.lane_in("RECOVERING")
    assert comes(newcomer) == ("started", None)
    assert len(guarded.events("server_ended")) == 1
    faults = [event["data"]["fault_class"] for event in guarded.events("incident")]
    assert "lane" not in faults
