"""Live resize over the simulated stack: a session goes on with another share, in a standby that came with it."""

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fault_injection.sim.script import Script
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program

pytestmark = [
    pytest.mark.slow(seconds=60, reason="starts two lanes, and programs with standbys on them"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a domain of several users needs root"),
]

DOMAIN = """
standby = true
multiuser = true
[[domain.class]]
name = "batch"
choosers = "anyone"
sm_share = 80
priority = "below_normal"
[[domain.class]]
name = "rest"
default = true
"""
WORKER = [sys.executable, "-m", "tests.integration.sim.worker", "work"]


class Resizable(Guarded):
    """A guard with classes and a standby lane, and one program under `mpsguard run --standby 1`."""

    def __init__(self) -> None:
        super().__init__(domain=DOMAIN)
        with self.config.open("a") as file:
            file.write("[vault]\nsimulated = true\n")
        self.environment["MPSGUARD_VAULT"] = str(self.run_directory / "vault.sock")
        self.gate = self.root / "gate"
        self.environment["WORKER_GATE"] = str(self.gate)
        self.environment.pop("CUDA_MPS_PIPE_DIRECTORY")

    def run(self, *options: str) -> Program:
        """Start the program, and wait until it works and is guarded."""
        program = self.start_program(*options)
        program.expect("went on")
        self.standby()
        return program

    def start_program(self, *options: str) -> Program:
        """Start the program."""
        run = [sys.executable, "-m", "mpsguard.cli.guard", "run", "--config", str(self.config), "--standby", "1"]
        # What the supervisor says goes elsewhere: the program's lines are JSON.
        words = ["sh", "-c", 'exec "$@" 2>>"$0"', str(self.root / "run.log"), *run, *options, "--settle", "0", "--"]
        return self.program([*words, *WORKER])

    def session(self) -> dict[str, Any]:
        """What `vault show` says of it."""
        return dict(self.json("vault", "show", str(os.getuid()), "work"))

    def lease(self, role: str) -> int | None:
        """The pid of the process that has it; a standby only once it is ready."""
        leases = self.session()["leases"]
        found = [each["pid"] for each in leases if each["role"] == role and (role == "writer" or each["ready"])]
        return found[0] if found else None

    def standby(self) -> int:
        """Wait for a ready one."""
        return wait_for("a ready standby", lambda: self.lease("standby"))

    def share(self, pid: int) -> float | None:
        """What the guard says of a client."""
        found: list[float | None] = [each["sm_share"] for each in self.clients() if each["process"]["pid"] == pid]
        return found[0]

    def lane_of(self, pid: int) -> str:
        """Where the guard says that a client is."""
        found: list[str] = [each["lane"] for each in self.clients() if each["process"]["pid"] == pid]
        return found[0]

    def resize_up_to_the_gate(self, standby: int) -> int:
        """Start a resize, and return the process that is to take over once it waits before it is ready."""
        os.mkfifo(self.gate)
        words = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(self.run_directory)]
        self.program([*words, "resize", "work", "--share", "30"])

        def came() -> int | None:
            found = [each["pid"] for each in self.session()["leases"] if each["role"] == "standby"]
            return found[0] if found and found[0] != standby else None

        pid = wait_for("its successor", came)
        assert (self.lane_of(pid), self.share(pid)) == ("default-0", 30)
        return pid

    def open_gate(self) -> None:
        """Let go the process that waits there, and none that comes."""
        opened = self.gate.open("w")
        self.gate.unlink()
        opened.close()

    def guarded_again(self, standby: int | None) -> int:
        """Wait for a ready standby that is another one, on the other lane than the writer."""

        def found() -> int | None:
            pid, writer = self.lease("standby"), self.lease("writer")
            known = {each["process"]["pid"]: each["lane"] for each in self.clients()}
            apart = pid in known and writer in known and known[pid] != known[writer]
            return pid if apart and pid != standby else None

        return wait_for("a standby on the other lane", found)

    def levers(self, pid: int) -> str:
        """What its server noted of it."""
        logs = (self.root / "log").glob("*/server.log")
        found = [re.search(rf"SIMULATED levers of {pid}: (.*)", path.read_text()) for path in logs]
        return next(match[1] for match in found if match)


def connected(address: tuple[str, int]) -> socket.socket | None:
    try:
        return socket.create_connection(address)
    except ConnectionRefusedError:
        return None


@pytest.fixture
def guarded() -> Iterator[Resizable]:
    with Resizable() as running:
        running.start()
        for pipe in (running.run_directory / "lanes").glob("*/pipe"):
            # As with a lifeline, for which there is no driver here: what a killed client leaves behind ends by itself.
            Script(pipe).spare_crashes()
        yield running
        if running.process.runs:
            running.ctl("vault", "release", "--force", str(os.getuid()), "work")


def test_a_session_goes_on_with_another_share(guarded: Resizable) -> None:
    program = guarded.run("--class", "batch")
    first = guarded.lease("writer")
    assert first is not None
    assert guarded.levers(first) == guarded.levers(guarded.standby()) == "share=80 priority=1"
    done = guarded.json("resize", "work", "--share", "30")
    heir = guarded.lease("writer")
    assert (done["pid"], done["share"], done["before"]) == (heir, 30, 80)
    assert heir is not None
    assert heir != first
    # It begins where the other one ended: the state that counts was published once.
    assert program.expect("went on")["at"] > 1
    assert (guarded.share(heir), guarded.levers(heir)) == (30, "share=30 priority=1")
    # Where its share protects the clients that it was beside; the next standby is where no fault of theirs ends it.
    assert guarded.lane_of(heir) == "default-0"
    assert guarded.lane_of(guarded.standby()) == "default-1"
    # Its own standby has the share, too, and the class.
    standby = guarded.standby()
    assert (standby != heir, guarded.levers(standby)) == (True, "share=30 priority=1")
    assert [event["data"]["share"] for event in guarded.events("session_resized")] == [30]
    assert not guarded.events("class_not_applied")
    assert not guarded.events("class_denied")


def test_a_resize_that_is_given_up_leaves_nothing_behind(guarded: Resizable) -> None:
    guarded.run("--class", "batch")
    writer, standby = guarded.lease("writer"), guarded.standby()
    os.mkfifo(guarded.gate)
    assert guarded.ctl("resize", "work", "--share", "30", "--wait", "2", deadline=0.1).returncode != 0
    guarded.open_gate()
    following = guarded.guarded_again(standby)
    assert guarded.lease("writer") == writer
    assert guarded.levers(following) == "share=80 priority=1"
    assert not guarded.events("takeover")


def test_a_resize_fails_where_the_share_cannot_be_given(guarded: Resizable) -> None:
    guarded.run("--class", "batch")
    writer, standby = guarded.lease("writer"), guarded.standby()
    Script(guarded.pipe).lack("get_active_thread_percentage")
    assert guarded.ctl("resize", "work", "--share", "30").returncode == 1
    # One may have been on its way when the share changed; a second one says that none would fare better.
    assert len({event["data"]["pid"] for event in guarded.events("class_not_applied")}) == 2
    following = guarded.guarded_again(standby)
    assert (guarded.lease("writer"), guarded.levers(following)) == (writer, "share=80 priority=1")


def test_a_guard_that_is_killed_in_a_resize_leaves_no_share_and_no_standby_behind(guarded: Resizable) -> None:
    guarded.run("--class", "batch")
    writer, standby = guarded.lease("writer"), guarded.standby()
    came = guarded.resize_up_to_the_gate(standby)
    guarded.kill()
    guarded.start()
    guarded.open_gate()
    following = guarded.guarded_again(came)
    assert guarded.lease("writer") == writer
    assert guarded.levers(following) == "share=80 priority=1"


def test_a_fault_while_a_session_is_resized_is_a_restart(guarded: Resizable) -> None:
    program = guarded.run("--class", "batch")
    writer, standby = guarded.lease("writer"), guarded.standby()
    guarded.resize_up_to_the_gate(standby)
    environment = guarded.environment | {"CUDA_MPS_PIPE_DIRECTORY": str(guarded.public)}
    culprit = Program([sys.executable, "-m", "fault_injection.sim.client", "--fault", "trap"], environment)
    guarded._programs.append(culprit)
    seen = wait_for("the fault is seen", lambda: guarded.events("takeover"))
    assert {event["data"]["outcome"] for event in seen} == {"no_standby"}
    guarded.open_gate()
    assert program.expect("went on")["pid"] != writer
    guarded.guarded_again(standby)
    assert guarded.levers(guarded.standby()) == "share=80 priority=1"


def test_its_neighbours_on_the_lane_that_it_leaves_do_not_stand_still(guarded: Resizable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = probe.getsockname()
    program = guarded.start_program("--class", "batch", "--listen", f"127.0.0.1:{address[1]}")
    peer = wait_for("it listens", lambda: connected(address))
    program.expect("went on")
    guarded.standby()
    environment = guarded.environment | {"CUDA_MPS_PIPE_DIRECTORY": str(guarded.public)}
    neighbour = Program([sys.executable, "-m", "fault_injection.sim.client", "--seconds", "3"], environment)
    guarded._programs.append(neighbour)
    neighbour.expect("started")
    first = guarded.lease("writer")
    guarded.json("resize", "work", "--share", "30")
    wait_for("its former process is over", lambda: first not in [each["process"]["pid"] for each in guarded.clients()])
    assert neighbour.expect("finished", "died")["event"] == "finished"
    peer.close()
    # A server asks a client to let go of its work, and waits for one that is stopped, with all others.
    assert not guarded.events("command_timeout")


def test_the_share_outlives_the_guard(guarded: Resizable) -> None:
    guarded.run("--class", "batch")
    guarded.json("resize", "work", "--share", "30")
    standby = guarded.standby()
    guarded.kill()
    guarded.start()
    os.kill(standby, signal.SIGKILL)
    wait_for("the next standby", lambda: guarded.lease("standby") not in (None, standby))
    assert guarded.levers(guarded.standby()) == "share=30 priority=1"


def test_back_to_the_share_of_the_class(guarded: Resizable) -> None:
    guarded.run("--class", "batch")
    for share in (30, 80):
        done = guarded.json("resize", "work", "--share", str(share))
        assert guarded.levers(done["pid"]) == f"share={share} priority=1"
        guarded.standby()
    # Nothing is left to be done: the standby has the share already.
    assert guarded.json("resize", "work", "--share", "80")["before"] == 80


def test_more_than_its_class_gives_is_refused(guarded: Resizable) -> None:
    guarded.run("--class", "batch")
    before = guarded.lease("writer")
    refused = guarded.ctl("resize", "work", "--share", "81")
    assert refused.returncode == 1
    assert "batch" in refused.stderr
    assert guarded.lease("writer") == before
    assert guarded.standby()


@pytest.mark.parametrize("share", ["0", "101", "much"])
def test_a_share_that_is_none_is_wrong_usage(guarded: Resizable, share: str) -> None:
    assert guarded.ctl("resize", "work", "--share", share).returncode == 2


def test_what_is_no_session_cannot_be_resized(guarded: Resizable) -> None:
    refused = guarded.ctl("resize", "elsewhere", "--share", "50")
    assert (refused.returncode, "elsewhere" in refused.stderr) == (1, True)


def test_a_session_without_a_supervisor_is_refused(guarded: Resizable) -> None:
    alone = guarded.program(
        WORKER,
    )
    alone.expect("working")
    refused = guarded.ctl("resize", "work", "--share", "50")
    assert refused.returncode == 1
    alone.close()


def test_a_class_that_there_is_not_cannot_be_chosen(guarded: Resizable) -> None:
    run = [sys.executable, "-m", "mpsguard.cli.guard", "run", "--config", str(guarded.config), "--class", "none"]
    program = guarded.program(
        ["sh", "-c", '"$@" 2>/dev/null; echo {\\"event\\": \\"over\\", \\"code\\": $?}', "sh", *run, "--", "true"]
    )
    assert program.expect("over")["code"] == 125
