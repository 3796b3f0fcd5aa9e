"""Objectives over the simulated stack: requests that a program marks decide what the batch class gets."""

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mpsguard.vault.wire.supervisor_wire import ROLE_VARIABLE, ProcessRole
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program

pytestmark = [
    pytest.mark.slow(seconds=60, reason="starts lanes, and programs with standbys on them"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a domain of several users needs root"),
]

DOMAIN = """
multiuser = true
standby = true
[[domain.class]]
name = "batch"
choosers = "anyone"
sm_share = 80
priority = "below_normal"
[[domain.class]]
name = "critical"
default = true
[[domain.objective]]
class = "critical"
batch = "batch"
p99_ms = 10
least_share = 60
window = 0.2
least_requests = 10
"""
SERVICE = """
import json, sys, time
from fault_injection.sim.cuda import CudaProcess
from mpsguard import client
cuda = CudaProcess()
cuda.init()
cuda.create_context(1)
with client.Session("service") as session:
    latency = session.latency()
    print(json.dumps({"event": "serving"}), flush=True)
    while True:
        latency.record(float(sys.argv[1]))
        time.sleep(0.001)
"""
"""A program with requests that take as long as it says; its session is told to the guard by the environment."""
WORKER = [sys.executable, "-m", "tests.integration.sim.worker", "work"]


class WithObjective(Guarded):
    """A guard with an objective for programs of the default class."""

    def __init__(self, mode: str) -> None:
        super().__init__(domain=f'{DOMAIN}mode = "{mode}"\n')
        with self.config.open("a") as file:
            file.write("[vault]\nsimulated = true\n")
        self.environment["MPSGUARD_VAULT"] = str(self.run_directory / "vault.sock")

    def service(self, seconds: float, name: str = "service") -> None:
        """Start a program that is measured."""
        text = SERVICE.replace('"service"', f'"{name}"')
        self.program([sys.executable, "-c", text, str(seconds)]).expect("serving")

    def batch(self) -> Program:
        """Start a client of the batch class."""
        environment = self.environment | {"CUDA_MPS_PIPE_DIRECTORY": str(self.public / "batch")}
        program = Program([sys.executable, "-m", "fault_injection.sim.client"], environment)
        self._programs.append(program)
        program.expect("started")
        return program

    def guarded_batch(self) -> None:
        """Start a program of the batch class with a standby."""
        run = [sys.executable, "-m", "mpsguard.cli.guard", "run", "--config", str(self.config), "--standby", "1"]
        words = ["sh", "-c", 'exec "$@" 2>>"$0"', str(self.root / "run.log"), *run, "--class", "batch", "--settle", "0"]
        self.environment.pop("CUDA_MPS_PIPE_DIRECTORY")
        self.program([*words, "--", *WORKER]).expect("went on")
        self.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(self.public)

    def levers(self, pid: int) -> str:
        """What its server noted of a client."""
        logs = (self.root / "log").glob("*/server.log")
        found = [re.search(rf"SIMULATED levers of {pid}: (.*)", path.read_text()) for path in logs]
        return next(match[1].strip() for match in found if match)

    def writer_share(self) -> float | None:
        """The share of the process that writes the session of the batch program."""
        summary = self.json("vault", "show", str(os.getuid()), "work")["summary"]
        return next((each["sm_share"] for each in self.clients() if each["process"]["pid"] == summary["writer"]), None)

    def leases(self) -> list[dict[str, Any]]:
        """Those of the batch program's session."""
        return list(self.json("vault", "show", str(os.getuid()), "work")["leases"])

    def missed_windows(self) -> float:
        """How many there were."""
        return self.metric("mpsguard_objective_windows_total", **{"class": "critical", "result": "missed"})

    def objective(self) -> dict[str, Any]:
        """What `classes` says of it."""
        (view,) = self.json("classes")["objectives"]
        return dict(view)

    def decisions(self) -> list[tuple[float, float]]:
        """Each one: the share before, and the share after."""
        return [(event["data"]["before"], event["data"]["share"]) for event in self.events("objective_decided")]


def started(mode: str) -> Iterator[WithObjective]:
    with WithObjective(mode) as running:
        running.start()
        yield running
        if running.process.runs:
            for name in ("service", "work", "quick"):
                running.ctl("vault", "release", "--force", str(os.getuid()), name)


@pytest.fixture
def observing() -> Iterator[WithObjective]:
    yield from started("observe")


@pytest.fixture
def enforcing() -> Iterator[WithObjective]:
    yield from started("enforce")


def test_observe_says_a_share_and_gives_none(observing: WithObjective) -> None:
    observing.batch()
    observing.service(0.050)
    wait_for("a decision", observing.decisions)
    view = wait_for("a measured window", lambda: seen if (seen := observing.objective())["p99_ms"] else None)
    assert (view["share"], view["in_force"], view["settings"]["mode"]) == (60, 80, "observe")
    assert view["p99_ms"] == pytest.approx(50, rel=0.021)
    assert observing.levers(observing.batch().pid) == "share=80 priority=1"
    assert observing.decisions() == [(80, 60)]
    (event,) = observing.events("objective_decided")
    assert (event["data"]["service_class"], event["data"]["target_ms"]) == ("critical", 10)
    wait_for(
        "the metric",
        lambda: (
            observing.metric("mpsguard_objective_p99_seconds", **{"class": "critical"})
            == pytest.approx(0.05, rel=0.021)
        ),
    )
    assert observing.metric("mpsguard_objective_target_seconds", **{"class": "critical"}) == pytest.approx(0.01)
    assert observing.metric("mpsguard_objective_share", **{"class": "critical"}) == 60
    said = " ".join(observing.ctl("classes").stdout.split())
    assert "target 10 ms; would hold with 60 % for batch (observe)" in said


def test_the_slowest_session_decides(observing: WithObjective) -> None:
    observing.batch()
    observing.service(0.001, "quick")
    observing.service(0.050)
    (decided,) = wait_for("a decision", lambda: observing.events("objective_decided"))
    assert decided["data"]["session"].endswith("/service")
    said = wait_for("a measured window", lambda: seen if (seen := observing.objective())["p99_ms"] else None)
    assert said["session"]["name"] == "service"


def test_enforce_gives_a_client_that_comes_the_smaller_share(enforcing: WithObjective) -> None:
    before = enforcing.batch()
    enforcing.service(0.050)
    wait_for("a decision", enforcing.decisions)
    assert enforcing.levers(enforcing.batch().pid) == "share=60 priority=1"
    # The client that was there has no standby and keeps its share, so nothing more can be decided.
    assert enforcing.objective()["in_force"] == 80
    assert enforcing.decisions() == [(80, 60)]
    told = wait_for("it is told", lambda: enforcing.events("objective_held_back"))
    assert [event["data"]["pids"] for event in told] == [[before.pid]]
    assert enforcing.objective()["held_back_by"] == [before.pid]
    assert str(before.pid) in enforcing.ctl("classes").stdout
    before.close()
    wait_for("nothing holds it back", lambda: not enforcing.objective()["held_back_by"])


def test_enforce_resizes_a_running_session(enforcing: WithObjective) -> None:
    enforcing.guarded_batch()
    assert enforcing.writer_share() == 80
    enforcing.service(0.050)
    wait_for("the share of the objective", lambda: enforcing.writer_share() == 60)
    wait_for("the end of the process before", lambda: enforcing.objective()["in_force"] == 60)
    assert [event["data"]["share"] for event in enforcing.events("session_resized")] == [60]
    assert not enforcing.events("objective_resize_failed")
    assert not enforcing.events("objective_held_back")
    refused = enforcing.ctl("resize", "work", "--share", "70")
    assert (refused.returncode, "objective" in refused.stderr) == (1, True)


def test_a_session_that_cannot_be_resized_is_left_in_peace_for_a_while(enforcing: WithObjective) -> None:
    """Two processes that no supervisor started: the guard knows no program that would start another one."""
    for role, pipe in ((ProcessRole.ACTIVE, enforcing.public / "batch"), (ProcessRole.STANDBY, enforcing.public)):
        more = {ROLE_VARIABLE: role.value, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
        program = Program(WORKER, enforcing.environment | more)
        enforcing._programs.append(program)
        program.expect("joined")
    wait_for("a ready standby", lambda: any(each["ready"] for each in enforcing.leases()))
    enforcing.service(0.050)
    (failed,) = wait_for("an attempt", lambda: enforcing.events("objective_resize_failed"))
    assert (failed["data"]["share"], failed["data"]["again_in"]) == (60, 60)
    seen = enforcing.missed_windows()
    wait_for("three more windows", lambda: enforcing.missed_windows() >= seen + 3)
    assert len(enforcing.events("objective_resize_failed")) == 1
    assert enforcing.writer_share() == 80


def test_a_target_that_holds_changes_nothing(enforcing: WithObjective) -> None:
    enforcing.batch()
    enforcing.service(0.005)
    wait_for("a measured window", lambda: enforcing.objective()["requests"] >= 10)
    assert enforcing.objective()["share"] == 80
    assert enforcing.levers(enforcing.batch().pid) == "share=80 priority=1"
    assert enforcing.decisions() == []


def test_requests_of_another_class_are_not_measured(enforcing: WithObjective) -> None:
    """A program of the batch class marks slow requests of its own."""
    enforcing.batch()
    environment = enforcing.environment | {"CUDA_MPS_PIPE_DIRECTORY": str(enforcing.public / "batch")}
    program = Program([sys.executable, "-c", SERVICE.replace('"service"', '"work"'), "0.05"], environment)
    enforcing._programs.append(program)
    program.expect("serving")
    enforcing.service(0.005)
    wait_for("a measured window", lambda: enforcing.objective()["requests"] >= 10)
    assert enforcing.objective()["p99_ms"] < 10
