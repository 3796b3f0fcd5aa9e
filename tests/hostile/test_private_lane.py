"""Users that look for the stock daemon's own sockets and lock in a private lane, past the guard."""

import os
from typing import Any

import pytest

from fault_injection.sim.script import Script
from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=20, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

TRIES = """
def tried(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"

lane = os.path.dirname(sys.argv[2])
with open("/proc/net/unix") as listed:
    found = any(line.split()[-1] == sys.argv[2] for line in listed)
tell("tried", found=found, results=[
    tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[2])),
    tried(lambda: os.open(os.path.join(lane, "control_lock"), os.O_RDWR)),
    tried(lambda: os.open(os.path.join(lane, "log"), os.O_WRONLY | os.O_NONBLOCK)),
    tried(lambda: os.listdir(lane)),
    tried(lambda: os.stat(lane)),
])
"""
SERVED = """
sock = connect()
introduce(sock, 2)
tell("over", served=bool(socket.recv_fds(sock, 64, 4)[1]))
"""


def tries(guarded: Guarded) -> dict[str, Any]:
    return attack(guarded, TRIES, str(guarded.pipe / "control")).expect("tried")


def looked(guarded: Guarded) -> int:
    """How often the guard has asked for the list of clients."""
    return (guarded.log / "control.log").read_text().count("Cmd:get_client_list")


def test_no_other_user_gets_there_though_every_user_sees_the_path() -> None:
    with Guarded() as guarded:
        guarded.start()
        # A server that runs as this user is on the lane: it had to reach `control` itself.
        assert attack(guarded, SERVED).expect("over")["served"]
        told = tries(guarded)
        assert told["found"]
        assert told["results"] == ["PermissionError"] * 5


def test_a_lane_that_an_earlier_version_left_open_is_shut_and_adopted() -> None:
    with Guarded() as guarded:
        guarded.start()
        before = guarded.lane()
        guarded.kill()
        for directory in (guarded.pipe, guarded.pipe.parent, guarded.pipe.parent.parent):
            os.chown(directory, -1, 65534)
            directory.chmod(0o711)
        assert tries(guarded)["results"] == ["done", "done", "done", "PermissionError", "done"]
        guarded.start()
        after = guarded.lane()
        assert (after["adopted"], after["control"]) == (True, before["control"])
        assert tries(guarded)["results"] == ["PermissionError"] * 5
        assert attack(guarded, SERVED).expect("over")["served"]


def test_a_process_that_gets_there_all_the_same_is_found_and_is_a_client_from_then_on() -> None:
    with Guarded(policy="check_interval = 0.2") as guarded:
        guarded.start()
        honest = guarded.client()
        honest.expect("started")
        guarded.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(guarded.pipe)
        direct = guarded.client()
        guarded.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(guarded.public)
        direct.expect("started")
        (told,) = wait_for("a word of it", lambda: guarded.events("client_unbrokered"))
        assert (told["data"]["pid"], told["data"]["uid"]) == (direct.pid, 0)
        known = guarded.clients_of(honest.pid, direct.pid)
        assert (known[honest.pid]["unbrokered"], known[direct.pid]["unbrokered"]) == (False, True)
        assert guarded.metric("mpsguard_unbrokered_clients_total") == 1
        assert "1 clients came past the guard" in guarded.ctl("status").stdout
        # As with a lifeline, for which there is no driver here: the kernel that it leaves behind harms no other client.
        Script(guarded.pipe).spare_crashes()
        direct.process.kill()
        direct.process.wait()
        wait_for("its end", lambda: [each["process"]["pid"] for each in guarded.clients()] == [honest.pid])
        later = [guarded.client() for _ in range(4)]
        for client in later:
            client.expect("started")
        wait_for("them all", lambda: len(guarded.clients()) == 5)
        looks = looked(guarded)
        wait_for("more looks", lambda: looked(guarded) >= looks + 4)
        assert len(guarded.events("client_unbrokered")) == 1
