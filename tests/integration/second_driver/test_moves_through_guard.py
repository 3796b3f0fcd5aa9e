"""A guard over the simulated daemon moves an unmodified program under the preload, while it works."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded
from tests.integration.second_driver.bench import Bench
from tests.integration.second_driver.served import Served

pytestmark = pytest.mark.slow(seconds=60, reason="compiles the preload, starts guards with two lanes")

SILENT = """
import importlib, os, pkgutil
from fault_injection import sim
from fault_injection.sim import client
for each in pkgutil.iter_modules(sim.__path__):
    importlib.import_module(f"fault_injection.sim.{each.name}")
program = client.Client(client.parse([]))
os.setgid(65534)
os.setuid(65534)
program.run()
"""
"""A simulated client of another user, which may not read the modules."""
CLASSES = """
[[domain.class]]
name = "batch"
sm_share = 60
default = true
"""


@pytest.fixture
def guard() -> Iterator[Guarded]:
    with Guarded(domain="standby = true\n") as running:
        running.start()
        yield running


class Load:
    """Steps of a program, one after the other, on a thread; each checks all content."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._ends = threading.Event()
        self.codes: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            self.codes.append(self._served.ask()["code"])

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


def ready(guard: Guarded, served: Served, mode: str, to: str = "default-1") -> None:
    served.work_and_stand_still()
    claimed = [{"survives": "yes", "reason": ""}]
    wait_for("it says what it would do", lambda: guard.asked("clients")["survival"] == claimed)
    if mode == "hot":
        wait_for("its second driver is known", lambda: served.client(guard)["second_lane"] == to)


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_a_program_under_load_changes_lanes(guard: Guarded, built: Bench, mode: str) -> None:
    served = Served(guard, built, mode)
    ready(guard, served, mode)
    load = Load(served)
    done = guard.ctl("--json", "move", str(served.program.pid))
    load.end()
    assert done.returncode == 0, done.stdout + done.stderr
    assert served.ask() == {"event": "done", "code": 0}
    assert set(load.codes) <= {0}
    client = served.client(guard)
    # As the server of 580 lists a client that it has terminated.
    assert (client["lane"], client["lane_before"], client["second_lane"]) == ("default-1", "default-0", None)
    (told,) = guard.events("client_moved")
    assert (told["data"]["lane"], told["data"]["was"]) == ("default-1", "default-0")
    assert told["data"]["kept"] == "it stays until the process ends"
    # No fault was.
    assert guard.asked("incidents")["incidents"] == []


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_a_program_moves_there_and_back_and_there_again(guard: Guarded, built: Bench, mode: str) -> None:
    served = Served(guard, built, mode)
    lanes = ["default-0", "default-1"]
    for now, to in [lanes, lanes[::-1], lanes]:
        ready(guard, served, mode, to)
        load = Load(served)
        done = guard.ctl("--json", "move", str(served.program.pid))
        load.end()
        assert done.returncode == 0, done.stdout + done.stderr
        assert set(load.codes) <= {0}
        client = served.client(guard)
        assert (client["lane"], client["lane_before"], client["second_lane"]) == (to, now, None)
    assert served.ask() == {"event": "done", "code": 0}


def test_the_share_of_a_program_changes_again_and_again(guard: Guarded, built: Bench) -> None:
    served = Served(guard, built, "cold")
    for share in ("30", "60", "45"):
        ready(guard, served, "cold")
        done = guard.ctl("resize", str(served.program.pid), "--share", share)
        assert done.returncode == 0, done.stdout + done.stderr
        assert served.client(guard)["sm_share"] == float(share)
        assert served.ask() == {"event": "done", "code": 0}


def test_a_program_lives_through_a_fault_of_the_lane_that_it_moved_to(guard: Guarded, built: Bench) -> None:
    served, culprit = Served(guard, built, "cold"), Served(guard, built, "cold")
    for each in (served, culprit):
        each.work_and_stand_still()
    claimed = [{"survives": "yes", "reason": ""}] * 2
    for each in (served, culprit):
        wait_for("both say what they would do", lambda: guard.asked("clients")["survival"] == claimed)
        assert guard.ctl("move", str(each.program.pid)).returncode == 0
        each.work_and_stand_still()
    wait_for("both say what they would do", lambda: guard.asked("clients")["survival"] == claimed)
    # Its work in flight is lost, and cannot be done again.
    assert culprit.ask("trap") == {"event": "lost", "code": 719}
    assert served.ask() == {"event": "done", "code": 0}, served.report()
    client = wait_for("the guard knows", lambda: found if (found := served.client(guard))["went_over_at"] else None)
    assert (client["lane"], client["lane_before"]) == ("default-0", "default-1")


def test_a_program_that_shuts_its_old_connections_down_is_gone_from_the_old_lane(guard: Guarded, built: Bench) -> None:
    served = Served(guard, built, "cold")
    ready(guard, served, "cold")
    done = guard.ctl("--json", "move", str(served.program.pid), "--close-old")
    assert done.returncode == 0, done.stdout + done.stderr
    client = served.client(guard)
    assert (client["lane"], client["lane_before"]) == ("default-1", None)
    (told,) = guard.events("client_moved")
    assert told["data"]["kept"] == ""
    assert served.ask() == {"event": "done", "code": 0}


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_a_program_under_load_changes_its_share(built: Bench, mode: str) -> None:
    with Guarded(domain=f"standby = true\nmultiuser = true\n{CLASSES}") as guard:
        guard.start()
        served = Served(guard, built, mode)
        ready(guard, served, mode)
        pid = str(served.program.pid)
        assert guard.ctl("resize", pid, "--share", "70").returncode == 1
        load = Load(served)
        done = guard.ctl("resize", pid, "--share", "30")
        load.end()
        assert done.returncode == 0, done.stdout + done.stderr
        assert served.ask() == {"event": "done", "code": 0}
        assert set(load.codes) <= {0}
        client = served.client(guard)
        assert (client["lane"], client["sm_share"], client["service_class"]) == ("default-0", 30, "batch")
        assert "it stays until the process ends" in done.stdout


def test_a_program_that_cannot_move_says_why(guard: Guarded, built: Bench) -> None:
    served = Served(guard, built, "cold")
    ready(guard, served, "cold")
    assert served.ask("managed")["event"] == "done"
    done = guard.ctl("move", str(served.program.pid))
    assert done.returncode == 1
    assert "managed_memory" in done.stdout + done.stderr
    assert served.ask() == {"event": "done", "code": 0}
    client = served.client(guard)
    assert (client["lane"], client["second_lane"]) == ("default-0", None)
    (told,) = guard.events("client_not_moved")
    assert told["data"]["reason"] == "managed_memory"


def test_after_a_move_the_old_lane_may_fault(guard: Guarded, built: Bench) -> None:
    served = Served(guard, built, "cold")
    ready(guard, served, "cold")
    assert guard.ctl("move", str(served.program.pid)).returncode == 0
    assert guard.client("--fault", "trap").expect("died")["error"] == 719
    assert served.ask() == {"event": "done", "code": 0}
    wait_for("the old lane recovers", lambda: guard.lane()["state"] == "ACTIVE")


def test_a_lane_is_drained(guard: Guarded, built: Bench) -> None:
    """Those that can move do, new clients come to where they are, and the others are named."""
    served, other = Served(guard, built, "cold"), Served(guard, built, "hot")
    assert [each.ask()["event"] for each in (served, other)] == ["done", "done"]
    assert other.ask("managed")["event"] == "done"
    done = guard.ctl("move")
    assert done.returncode == 3
    assert f"process {served.program.pid} goes on on default-1" in done.stdout
    assert f"process {other.program.pid} stays on default-0: managed_memory" in done.stdout
    assert [each.ask()["code"] for each in (served, other)] == [0, 0]
    late = guard.client()
    late.expect("started")
    lanes = {each["process"]["pid"]: each["lane"] for each in guard.clients()}
    assert lanes == {served.program.pid: "default-1", other.program.pid: "default-0", late.pid: "default-1"}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_users_program_that_does_not_answer_holds_up_no_drain(built: Bench) -> None:
    with Guarded(domain="standby = true\nmultiuser = true\n") as guard:
        guard.start()
        guard.environment["MPSGUARD_SECOND_DRIVER"] = "cold"
        # It says what it would do, as the preload does, and heeds no request.
        silent = guard.program([sys.executable, "-c", SILENT])
        silent.expect("started")
        served = Served(guard, built, "cold")
        served.work_and_stand_still()
        both = [{"survives": "yes", "reason": ""}] * 2
        wait_for("both say what they would do", lambda: guard.asked("clients")["survival"] == both)
        command = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guard.run_directory), "move"]
        draining = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for("it has moved", lambda: served.client(guard)["lane"] == "default-1")
        assert guard.clients_of(silent.pid, served.program.pid)[silent.pid]["lane"] == "default-0"
        draining.kill()
        draining.wait()


def test_a_guard_that_ends_meanwhile_leaves_what_it_has_asked_for(guard: Guarded, built: Bench) -> None:
    served = Served(guard, built, "cold")
    ready(guard, served, "cold")
    assert guard.ctl("move", str(served.program.pid)).returncode == 0
    guard.kill()
    guard.start()
    client = wait_for("it is found", lambda: served.client(guard))
    assert (client["lane"], client["moved_at"] is not None) == ("default-1", True)
    assert served.ask() == {"event": "done", "code": 0}
