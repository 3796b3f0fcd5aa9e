"""Two lanes of a real guard over the simulated stack: routing, and which program goes on when a lane faults."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest

from fault_injection.sim.script import Script
from mpsguard.guard.control_api import async_client
from mpsguard.guard.control_api.messages.clients import EndWorkArguments, EndWorkResult
from mpsguard.guard.model import Work
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import process_tree, procfs
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.guarded import Guarded, Program, is_running

pytestmark = pytest.mark.slow(seconds=80, reason="starts two lanes and programs on them")
STRANGER = 65534


class FailoverPair(Guarded):
    """A guard with a standby lane."""

    def __init__(self, *, domain: str = "", policy: str = "") -> None:
        super().__init__(domain=f"{domain}standby = true", policy=policy)
        with self.config.open("a") as file:
            file.write("[vault]\nsimulated = true\n")
        self.environment["MPSGUARD_VAULT"] = str(self.run_directory / "vault.sock")
        self._workers: list[Program] = []

    def worker(self, role: str, *, name: str = "work", program: str = "") -> Program:
        directory = self.public / "standby" if role == "standby" else self.public
        environment = self.environment | {
            "CUDA_MPS_PIPE_DIRECTORY": str(directory),
            "MPSGUARD_ROLE": role,
            "MPSGUARD_PROGRAM": program,
        }
        worker = Program([sys.executable, "-m", "tests.integration.sim.worker", name], environment)
        self._workers.append(worker)
        return worker

    def lane_of(self, worker: Program) -> str:
        def lane() -> str | None:
            return next((each["lane"] for each in self.clients() if each["process"]["pid"] == worker.pid), None)

        return wait_for("the worker in the guard's list", lane)

    def ready(self, count: int = 1, name: str = "work") -> None:
        """Wait until so many standbys have said that they are."""

        def look() -> bool:
            shown = self.json("vault", "show", str(os.getuid()), name)
            return [lease["ready"] for lease in shown["leases"] if lease["role"] == "standby"].count(True) == count

        wait_for(f"{count} standbys ready", look)

    def active(self) -> str:
        name: str = self.json("status")["domains"][0]["lane"]["name"]
        return name

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        if self.process.runs:
            # Or the holder would wait for the next guard.
            self.ctl("vault", "release", str(os.getuid()), "work")
            self.stop()
        super().close()


@pytest.fixture
def pair() -> Iterator[FailoverPair]:
    with FailoverPair() as running:
        running.start()
        yield running


def working(pair: FailoverPair) -> tuple[Program, Program]:
    """One at work on the active lane, its standby ready on the other."""
    first = pair.worker("active")
    first.expect("went on")
    second = pair.worker("standby")
    second.expect("joined")
    pair.ready()
    return first, second


def test_each_directory_leads_to_a_lane_of_its_own(pair: FailoverPair) -> None:
    first, second = working(pair)
    assert (pair.lane_of(first), pair.lane_of(second)) == ("default-0", "default-1")
    assert [lane["name"] for lane in pair.json("lanes")["lanes"]] == ["default-0", "default-1"]
    pair.client().expect("started")
    wait_for("each lane's own clients", lambda: counted(pair) == ["2", "1"])


def counted(pair: FailoverPair) -> list[str]:
    """The column CLIENTS of `status`."""
    said = pair.ctl("status")
    assert said.returncode == 0
    return [line.split()[2] for line in said.stdout.splitlines() if line.startswith("default ")]


def test_when_a_lane_faults_the_standby_goes_on_and_the_lanes_change_places(pair: FailoverPair) -> None:
    first, second = working(pair)
    culprit = pair.client("--fault", "trap", "--after", "0.1")
    assert culprit.expect("died")["error"] == 719
    first.expect("died", "fenced")
    went_on = second.expect("went on")
    (told,) = wait_for("the takeover is told", lambda: pair.events("takeover"))
    assert (told["data"]["outcome"], told["data"]["heir"], told["data"]["writer"]) == ("done", second.pid, first.pid)
    assert went_on["at"] > 1
    assert pair.active() == "default-1"
    assert pair.metric("mpsguard_failovers_total", outcome="done") == 1
    # A client that comes now is brought to where the work is, and a new standby to the lane that was reset.
    late = pair.client()
    late.expect("started")
    third = pair.worker("standby")
    third.expect("joined")
    assert (pair.lane_of(late), pair.lane_of(third)) == ("default-1", "default-0")
    # And back again.
    pair.ready()
    pair.client("--fault", "trap", "--after", "0.1").expect("died")
    assert third.expect("went on")["at"] > went_on["at"]
    assert pair.active() == "default-0"


def test_a_writer_on_an_affected_lane_is_not_waited_for_although_the_server_reports_nothing_yet(
    pair: FailoverPair,
) -> None:
    first, second = working(pair)
    server = pair.json("lanes")["lanes"][0]["servers"][0]["process"]["pid"]
    # As the vendor's server does while a client of it is stopped: the log has begun, no answer comes.
    first.process.send_signal(signal.SIGSTOP)
    Script(pair.pipe).hang("get_client_list")
    try:
        with (pair.log / "server.log").open("a") as log:
            log.write(f"[{datetime.now():%Y-%m-%d %H:%M:%S.%f}"[:-3] + f" Server {server:5}] ")
            log.write("Server is handling a fatal GPU error.\n")
        second.expect("went on")
        assert pair.json("lanes")["lanes"][0]["state"] == "ACTIVE"
        namespace = process_tree.pid_namespace()
        assert namespace is not None
        keys = tuple(procfs.process_key(worker.pid) for worker in (first, second))
        asked = EndWorkArguments(keys, namespace, within=PATIENCE)
        told = asyncio.run(async_client.ask(str(pair.run_directory), "end_work", asked, EndWorkResult, PATIENCE))
        # The hanging command is that of the lane that was left; the other one is asked and answers.
        assert {ended.process: ended.work for ended in told.clients} == {keys[0]: Work.NONE, keys[1]: Work.ENDED}
    finally:
        Script(pair.pipe).clear()
        first.process.send_signal(signal.SIGCONT)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_program_that_stands_by_for_nothing_is_no_standby() -> None:
    with FailoverPair(domain="multiuser = true\n") as pair:
        pair.start()
        environment = pair.environment | {"CUDA_MPS_PIPE_DIRECTORY": str(pair.public / "standby")}
        words = ["/usr/bin/python3", "-m", "fault_injection.sim.client"]
        stranger = Program(words, environment | {"MPSGUARD_ROLE": "standby"}, user=STRANGER, group=STRANGER)
        pair._programs.append(stranger)
        stranger.expect("started")
        assert pair.lane_of(stranger) == "default-0"
        assert [event["data"]["pid"] for event in pair.events("standby_denied")] == [stranger.pid]


def test_a_fault_of_the_standby_lane_leaves_the_work_alone(pair: FailoverPair) -> None:
    first, second = working(pair)
    pair.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(pair.public / "standby")
    assert pair.client("--fault", "trap").expect("died")["error"] == 719
    wait_for("the lane is well again", lambda: pair.json("lanes")["lanes"][1]["state"] == "ACTIVE")
    # It waits, and would not find out by itself; the lane could not be reset as long as it is there.
    assert second.expect("fenced", "working")["event"] == "fenced"
    assert first.process.poll() is None
    assert pair.active() == "default-0"
    assert not [told for told in pair.events("takeover") if told["data"]["outcome"] == "done"]


def test_a_crash_hands_the_work_on_and_the_next_standby_is_kept_away_from_it(pair: FailoverPair) -> None:
    first = pair.worker("active", program="one")
    first.expect("went on")
    second = pair.worker("standby", program="one")
    second.expect("joined")
    pair.ready()
    # As with a lifeline, for which there is no driver here: its kernel ends by itself.
    Script(pair.pipe).spare_crashes()
    first.process.send_signal(signal.SIGKILL)
    assert second.expect("went on")["at"] > 1
    third = pair.worker("standby", program="one")
    third.expect("joined")
    # The lane did not fault, and others may work there: the lanes keep their places.
    assert (pair.lane_of(second), pair.lane_of(third), pair.active()) == ("default-1", "default-0", "default-0")


def test_an_operator_moves_the_work(pair: FailoverPair) -> None:
    first, second = working(pair)
    done = pair.ctl("move")
    assert done.returncode == 0, done.stderr
    assert second.expect("went on")["at"] > 1
    assert first.expect("fenced", "died")["event"] == "fenced"
    assert pair.active() == "default-1"
    # It has no standby now.
    assert pair.ctl("move").returncode == 3
    assert pair.active() == "default-1"


def test_the_next_guard_knows_where_the_work_is(pair: FailoverPair) -> None:
    first, second = working(pair)
    assert pair.ctl("move").returncode == 0
    second.expect("went on")
    first.wait()
    pair.kill()
    pair.start()
    assert pair.active() == "default-1"
    late = pair.client()
    late.expect("started")
    assert {pair.lane_of(late), pair.lane_of(second)} == {"default-1"}


def forbid_saving(pair: FailoverPair) -> None:
    """Where the draft of the file would be there is a directory: that stops root, too."""
    (pair.root / "state" / "lanes" / "default.active.json.new").mkdir(parents=True)


def test_a_takeover_is_carried_out_although_it_cannot_be_saved_where_the_work_is(pair: FailoverPair) -> None:
    _, second = working(pair)
    forbid_saving(pair)
    pair.client("--fault", "trap", "--after", "0.1").expect("died")
    assert second.expect("went on")["at"] > 1
    (told,) = wait_for("the takeover is told", lambda: pair.events("takeover"))
    assert (told["data"]["outcome"], told["data"]["to"]) == ("done", "default-1")
    assert pair.metric("mpsguard_failovers_total", outcome="done") == 1
    (trouble,) = pair.events("active_lane_not_saved")
    assert trouble["data"]["lane"] == pair.active() == "default-1"


def test_a_move_reports_that_the_work_cannot_be_saved(pair: FailoverPair) -> None:
    _, second = working(pair)
    forbid_saving(pair)
    done = pair.ctl("--json", "move")
    assert done.returncode == 3, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["to"], len(answer["moved"]), answer["left"]) == ("default-1", 1, [])
    assert answer["unsaved"]
    second.expect("went on")
    assert pair.active() == "default-1"
    late = pair.client()
    late.expect("started")
    assert pair.lane_of(late) == "default-1"


def test_a_client_parked_when_the_lanes_change_places_goes_where_the_work_is(pair: FailoverPair) -> None:
    first = pair.worker("active")
    first.expect("went on")
    # Seen while no program could go on: the lanes keep their places, and a client that comes waits.
    Script(pair.pipe).force_fault()
    pair.lane_in("FAULT")
    late = pair.client()
    wait_for("it is parked", lambda: pair.json("status")["domains"][0]["parked"] == 1)
    second = pair.worker("standby")
    second.expect("joined")
    pair.ready()
    assert pair.ctl("move").returncode == 0
    assert late.expect("connected", "died")["event"] == "connected"
    assert (pair.lane_of(late), pair.active()) == ("default-1", "default-1")


def test_what_a_user_sets_is_set_on_both_lanes(pair: FailoverPair) -> None:
    assert pair.ui("set_default_active_thread_percentage 40").returncode == 0
    kept = [lane["settings"]["active_thread_percentage"] for lane in pair.json("lanes")["lanes"]]
    assert kept == [40.0, 40.0]


def test_quit_ends_both_lanes(pair: FailoverPair) -> None:
    controls = [ProcessKey(**lane["control"]) for lane in pair.json("lanes")["lanes"]]
    pair.ui("quit")
    assert pair.guard.wait(30) == 0
    assert not [key for key in controls if is_running(key)]


def test_quit_ends_a_domain_with_another_lane_that_waits_to_be_started() -> None:
    with FailoverPair(policy="restart_burst = 1\nrestart_window = 600") as pair:
        pair.start()
        os.kill(pair.json("lanes")["lanes"][1]["control"]["pid"], signal.SIGKILL)
        wait_for("it waits", lambda: pair.json("lanes")["lanes"][1]["flapping"])
        pair.ui("quit")
        assert pair.guard.wait(30) == 0


def test_move_is_refused_where_there_is_one_lane() -> None:
    with Guarded() as alone:
        alone.start()
        assert alone.ctl("move").returncode == 1
