"""A client that executes another program with a kernel in flight: what it had open of the GPU is closed by that."""

import os
import sys
from typing import Any

import pytest

from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

UID = 65533
CLIENT = f"""
import json, os, sys
from fault_injection.sim.cuda import CudaProcess
os.setgroups([]); os.setresgid({UID}, {UID}, {UID}); os.setresuid({UID}, {UID}, {UID})
space, plain = os.open("/dev/full", os.O_RDWR | os.O_APPEND), os.open("/dev/full", os.O_RDWR)
cuda = CudaProcess()
cuda.init()
cuda.create_context(1)
print(json.dumps(dict(event="started")), flush=True)
sys.stdin.readline()
os.execv("/bin/sleep", ["sleep", "600"])
"""

AGAIN = """
import json, os, sys
from fault_injection.sim.cuda import CudaProcess
space, plain = os.open("/dev/full", os.O_RDWR | os.O_APPEND), os.open("/dev/full", os.O_RDWR)
cuda = CudaProcess()
cuda.init()
cuda.create_context(1)
print(json.dumps(dict(event="started")), flush=True)
os.read(0, 1)
if len(sys.argv) < 4:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], *sys.argv[1:], "again"])
"""


@pytest.fixture
def attacker() -> Any:
    with Guarded(domain="[domain.lifelines]\ncrash_hold = 600") as guarded:
        guarded.process.module = "tests.hostile.with_driver"
        guarded.start()
        yield guarded, start(guarded)


def start(guarded: Guarded) -> Program:
    read, write = os.pipe()
    client = guarded.program([sys.executable, "-c", CLIENT], stdin=read)
    os.close(read)
    client.expect("started")
    wait_for("the sensor's eye on it", lambda: watched(guarded, client.pid))
    os.write(write, b"\n")
    os.close(write)
    return client


def watched(guarded: Guarded, pid: int) -> bool:
    return any(each["pid"] == pid and each["watched"] for each in guarded.asked("clients")["watches"])


def held(guarded: Guarded) -> list[int]:
    return [each["pid"] for each in guarded.asked("lifelines")["lifelines"]]


def test_its_address_space_is_kept_and_it_is_named(attacker: tuple[Guarded, Program]) -> None:
    guarded, client = attacker
    wait_for("a lifeline", lambda: held(guarded) == [client.pid])
    assert client.process.poll() is None, "the process lives on"
    assert guarded.clients() == []
    (told,) = wait_for("an incident", lambda: guarded.events("incident"))[:1]
    assert (told["data"]["fault_class"], told["data"]["culprit"]) == ("process", client.pid)
    assert "by executing another program" in told["data"]["reason"]
    assert "fault_injection.sim.cuda" in told["data"]["reason"], "it is known by its command as a client"
    assert guarded.ctl("lifelines", "--release", str(client.pid)).returncode == 0
    assert held(guarded) == []


def test_each_program_of_a_process_is_a_client_of_its_own() -> None:
    with Guarded(domain="[domain.lifelines]\ncrash_hold = 600") as guarded:
        guarded.process.module = "tests.hostile.with_driver"
        guarded.start()
        read, write = os.pipe()
        client = guarded.program([sys.executable, "-c", AGAIN, AGAIN], stdin=read)
        os.close(read)
        for number in range(3):
            client.expect("started")
            wait_for("the sensor's eye on it", lambda: watched(guarded, client.pid))
            assert held(guarded) == [client.pid] * number
            os.write(write, b"\n")
        os.close(write)
        assert client.wait() == 0
        # An end in order is held too, and not for as long.
        wait_for("its end", lambda: not guarded.clients())
        reasons = [event["data"]["reason"] for event in guarded.events("incident")]
        assert sum("by executing another program" in reason for reason in reasons) == 2
        assert guarded.ctl("lifelines", "--release", str(client.pid)).returncode == 0
        assert held(guarded) == []
