"""Service classes over the simulated stack: its server notes what a client gets when the daemon announces it."""

import json
import os
import re
import sys
from collections.abc import Iterator

import pytest

from fault_injection.sim.script import Script
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program

pytestmark = [
    pytest.mark.slow(seconds=30, reason="starts guards and clients"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

STRANGER = 65534
CLASSES = """
multiuser = true
[[domain.class]]
name = "critical"
uids = [0]
max_clients = 3
[[domain.class]]
name = "batch"
choosers = "anyone"
max_clients = 40
max_clients_per_user = 2
sm_share = 40
priority = "below_normal"
memory_limit = { 0 = "2G" }
[[domain.class]]
name = "rest"
default = true
sm_share = 70
"""
AT_REST = "share=100 priority=0"
BATCH = f"share=40 priority=1 0={2 << 30}"
REST = "share=70 priority=0"


DAWDLES = """
import json, os, signal, socket, struct
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "control"))
sock.recv(64)
sock.send(b"OUTBCRED\\0")
sock.send(struct.pack("<i", 2))
print(json.dumps({"event": "waits"}), flush=True)
signal.pause()
"""
"""A client that never takes the socket which it is given."""


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded(domain=CLASSES) as running:
        running.start()
        yield running


def levers(guarded: Guarded, pid: int) -> str:
    """What a client got at its first connection."""
    log = guarded.log / "server.log"
    # Its lines go through the control daemon, also as with the vendor's.
    found: re.Match[str] = wait_for(
        "its levers", lambda: re.search(rf"SIMULATED levers of {pid}: (.*)\n", log.read_text())
    )
    return found[1].strip()


def come(guarded: Guarded, service_class: str = "", uid: int = 0, **variables: str) -> Program:
    environment = guarded.environment | variables
    environment["CUDA_MPS_PIPE_DIRECTORY"] = str(guarded.public / service_class)
    python = sys.executable if uid == 0 else "/usr/bin/python3"
    program = Program([python, "-m", "fault_injection.sim.client"], environment, user=uid, group=uid)
    guarded._programs.append(program)
    program.expect("started")
    return program


def class_of(guarded: Guarded, program: Program) -> str | None:
    found: list[str | None] = wait_for(
        "the client is known",
        lambda: [each["service_class"] for each in guarded.clients() if each["process"]["pid"] == program.pid],
    )
    return found[0]


def server_command(guarded: Guarded, command: str) -> str:
    server = guarded.lane()["servers"][0]["process"]["pid"]
    return guarded.ui(command.format(server)).stdout.strip()


def test_each_client_gets_what_its_class_gives(guarded: Guarded) -> None:
    first = come(guarded, "batch", STRANGER)
    for program, name, wanted in (
        (first, "batch", BATCH),
        (come(guarded), "critical", AT_REST),
        (come(guarded, uid=STRANGER), "rest", REST),
    ):
        assert (class_of(guarded, program), levers(guarded, program.pid)) == (name, wanted)
    assert float(server_command(guarded, "get_active_thread_percentage {}")) == 100
    assert server_command(guarded, "get_default_client_priority") == "0"
    shown = {view["settings"]["name"]: view["clients"] for view in guarded.json("classes")["classes"]}
    assert shown == {"critical": 1, "batch": 1, "rest": 1}
    assert guarded.metric("mpsguard_class_clients", **{"class": "batch"}) == 1
    assert "batch" in guarded.ctl("classes").stdout
    assert not guarded.events("class_not_applied")


def test_a_class_that_one_may_not_choose_is_not_had(guarded: Guarded) -> None:
    stranger = come(guarded, "critical", STRANGER)
    assert (class_of(guarded, stranger), levers(guarded, stranger.pid)) == ("rest", REST)
    assert [event["data"]["pid"] for event in guarded.events("class_denied")] == [stranger.pid]


def test_a_full_class_refuses_one_more(guarded: Guarded) -> None:
    programs = [come(guarded) for _ in range(3)]
    one_more = guarded.client("--iterations", "1")
    assert one_more.wait() != 0 or one_more.next()["event"] != "connected"
    assert guarded.metric("mpsguard_refused_connections_total", reason="class") > 0
    # In order: a kill would be a fault, and the next one might come before the server has noticed it.
    programs[0].process.terminate()
    assert programs[0].wait() == 0
    wait_for("its place is free", lambda: len(guarded.clients()) == 2)
    come(guarded)


def test_a_user_has_a_share_of_a_class(guarded: Guarded) -> None:
    for _ in range(2):
        come(guarded, "batch", STRANGER)
    environment = guarded.environment | {"CUDA_MPS_PIPE_DIRECTORY": str(guarded.public / "batch")}
    words = ["/usr/bin/python3", "-m", "fault_injection.sim.client", "--iterations", "1"]
    one_more = Program(words, environment, user=STRANGER, group=STRANGER)
    guarded._programs.append(one_more)
    assert one_more.wait() != 0 or one_more.next()["event"] != "connected"
    assert guarded.metric("mpsguard_refused_connections_total", reason="class") > 0
    # Root, and other users, still have theirs.
    come(guarded, "batch")


def test_a_client_that_takes_a_better_priority_is_told_of(guarded: Guarded) -> None:
    lifted = come(guarded, "batch", STRANGER, CUDA_MPS_CLIENT_PRIORITY="0")
    assert [event["data"]["pid"] for event in guarded.events("class_lifted")] == [lifted.pid]


def test_a_crowd_of_two_classes_comes_at_once(guarded: Guarded) -> None:
    come(guarded)
    crowd = []
    for name in ("batch", "rest") * 6:
        environment = guarded.environment | {"CUDA_MPS_PIPE_DIRECTORY": str(guarded.public / name)}
        crowd.append((name, Program([sys.executable, "-m", "fault_injection.sim.client"], environment)))
    for _, program in crowd:
        guarded._programs.append(program)
        program.expect("started")
    for name, program in crowd:
        assert levers(guarded, program.pid) == {"batch": BATCH, "rest": REST}[name]


def test_a_guard_that_is_killed_leaves_no_lever_behind(guarded: Guarded) -> None:
    come(guarded, "batch")
    server = guarded.lane()["servers"][0]["process"]
    guarded.kill()
    # As if it had been killed between moving them and putting them back.
    guarded.ui(f"set_active_thread_percentage {server['pid']} 40", pipe_directory=guarded.pipe)
    guarded.ui("set_default_client_priority 1", pipe_directory=guarded.pipe)
    guarded.start()
    assert float(server_command(guarded, "get_active_thread_percentage {}")) == 100
    assert server_command(guarded, "get_default_client_priority") == "0"
    following = come(guarded)
    assert levers(guarded, following.pid) == AT_REST


def test_classes_outlive_the_guard(guarded: Guarded) -> None:
    batch = come(guarded, "batch", STRANGER)
    guarded.kill()
    guarded.start()
    assert class_of(guarded, batch) == "batch"


def test_what_a_user_sets_stays_set(guarded: Guarded) -> None:
    come(guarded)
    server_command(guarded, "set_active_thread_percentage {} 90")
    batch = come(guarded, "batch")
    assert levers(guarded, batch.pid) == BATCH
    assert float(server_command(guarded, "get_active_thread_percentage {}")) == 90


@pytest.mark.parametrize("branch", ["550", "580"])
def test_levers_go_back_to_what_was_asked_for(branch: str) -> None:
    """The daemon shows whole GiB and one decimal: what is put back is what was set, not what is shown."""
    classes = CLASSES.replace('"2G"', '"20389M"').replace("max_clients = 3\n", "")
    batch = f"share=40 priority=1 0={20389 << 20}"
    with Guarded(domain=classes) as guarded:
        Script(guarded.pipe).driver(branch)
        guarded.start()
        guarded.ui("set_default_active_thread_percentage 33.333", "set_default_device_pinned_mem_limit 0 1536M")
        at_rest = f"share=33.333 priority=0 0={1536 << 20}"
        assert levers(guarded, come(guarded).pid) == at_rest
        assert levers(guarded, come(guarded, "batch").pid) == batch
        assert levers(guarded, come(guarded).pid) == at_rest
        assert not guarded.events("class_not_applied")
        # A default that changes is for servers to come, also where the old one and the new one are shown alike.
        guarded.ui("set_default_device_pinned_mem_limit 0 1700M", "set_default_active_thread_percentage 33.3")
        assert levers(guarded, come(guarded, "batch").pid) == batch
        assert levers(guarded, come(guarded).pid) == at_rest
        guarded.kill()
        guarded.start()
        assert levers(guarded, come(guarded, "batch").pid) == batch
        assert levers(guarded, come(guarded).pid) == at_rest
        # What is set at the server itself is where it rests then.
        server_command(guarded, "set_device_pinned_mem_limit {} 0 2100M")
        server_command(guarded, "set_active_thread_percentage {} 66.66%")
        assert levers(guarded, come(guarded, "batch").pid) == batch
        assert levers(guarded, come(guarded).pid) == f"share=66.66 priority=0 0={2100 << 20}"


def test_a_client_that_stops_in_its_handshake_keeps_no_lever_and_no_other_client(guarded: Guarded) -> None:
    come(guarded)
    environment = guarded.environment | {"CUDA_MPS_PIPE_DIRECTORY": str(guarded.public / "batch")}
    dawdles = Program(
        [
            sys.executable,
            "-c",
            DAWDLES,
        ],
        environment,
    )
    guarded._programs.append(dawdles)
    dawdles.expect("waits")
    following = come(guarded, uid=STRANGER)
    assert levers(guarded, following.pid) == REST


def test_a_lever_that_the_driver_lacks_is_told_of_and_the_client_is_served_without(guarded: Guarded) -> None:
    def finding() -> tuple[str, str]:
        said = guarded.ctl("doctor", "--config", str(guarded.config), "--json").stdout
        (found,) = [each for each in json.loads(said) if "levers" in each["subject"]]
        return found["grade"], found["text"]

    assert finding()[0] == "ok"
    Script(guarded.pipe).lack("get_default_client_priority")
    grade, text = finding()
    assert (grade, "priority" in text, "sm_share" in text) == ("problem", True, False)
    program = come(guarded, "batch", STRANGER)
    assert (class_of(guarded, program), levers(guarded, program.pid)) == ("batch", AT_REST)
    # For its driver, and for its context.
    assert [event["data"]["pid"] for event in guarded.events("class_not_applied")] == [program.pid] * 2
    assert guarded.metric("mpsguard_classes_not_applied_total") == 2
