"""Programs with a second driver at a real guard over the simulated stack: after their lane's fault they go on.

The programs are simulated ones, which do what a program under the preload does as far as the guard sees it
(`fault_injection/sim/second_driver.py`). tests/integration/second_driver has the preload itself.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program

pytestmark = pytest.mark.slow(seconds=60, reason="starts two lanes and programs on them")

STRANGER = 65534
CLASS = """multiuser = true
[[domain.class]]
name = "gold"
sm_share = 25
"""
AHEAD = """
from fault_injection.sim.cuda import CudaFailureError, CudaProcess
from fault_injection.sim.directory import pipe_directory
first, second = CudaProcess(), CudaProcess(pipe_directory() / "second")
first.init()
first.create_context(1)
try:
    second.init()
    second.create_context(1)
    print('{"event": "connected"}', flush=True)
except CudaFailureError:
    print('{"event": "error"}', flush=True)
input()
"""
"""A program that connects a second driver before a fault, with the standard library alone: another user's Python."""


class Lanes(Guarded):
    """A guard with two lanes."""

    def __init__(self, *, domain: str = "") -> None:
        super().__init__(domain=f"standby = true\n{domain}")

    def served(self, mode: str, *arguments: str, **more: Any) -> Program:
        """Start a program under the preload with a second driver."""
        self.environment["MPSGUARD_SECOND_DRIVER"] = mode
        try:
            program = self.client(*arguments, **more)
        finally:
            del self.environment["MPSGUARD_SECOND_DRIVER"]
        program.expect("started")
        return program

    def of(self, program: Program) -> dict[str, Any]:
        """What the guard knows of a program; fails if it is not one client."""
        found = wait_for(
            "it is known", lambda: [each for each in self.clients() if each["process"]["pid"] == program.pid]
        )
        assert len(found) == 1
        return found[0]

    def fault(self) -> None:
        """Let another client of the active lane fault."""
        assert self.client("--fault", "trap", "--after", "0.1").expect("died")["error"] == 719

    def lanes(self) -> dict[str, str]:
        return {lane["name"]: lane["state"] for lane in self.asked("lanes")["lanes"]}

    def listed(self, lane: str) -> set[int]:
        """The clients that a lane's own daemon lists."""
        pipe = self.run_directory / "lanes" / lane / "pipe"
        servers = self.ui("get_server_list", pipe_directory=pipe).stdout.split()
        return {
            int(pid)
            for server in servers
            for pid in self.ui(f"get_client_list {server}", pipe_directory=pipe).stdout.split()
        }


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    with Lanes() as running:
        running.start()
        yield running


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_a_program_goes_over_to_the_other_lane_and_the_old_one_recovers(lanes: Lanes, mode: str) -> None:
    program = lanes.served(mode)
    client = lanes.of(program)
    assert (client["lane"], client["second_driver"]) == ("default-0", mode)
    if mode == "hot":
        wait_for("its second driver is known", lambda: lanes.of(program)["second_lane"] == "default-1")
    lanes.fault()
    program.expect("went_over")
    client = wait_for("the guard knows", lambda: found if (found := lanes.of(program))["went_over_at"] else None)
    assert (client["lane"], client["lane_before"], client["second_lane"]) == ("default-1", "default-0", None)
    wait_for("one client is left", lambda: lanes.metric("mpsguard_clients") == 1)
    (told,) = lanes.events("client_went_over")
    assert (told["data"]["pid"], told["data"]["lane"], told["data"]["was"]) == (program.pid, "default-1", "default-0")
    assert lanes.metric("mpsguard_second_drivers_total", outcome="went_over") == 1
    # Its old lane lists it for as long as it lives, so the guard has ended that server.
    wait_for("the old lane recovers", lambda: lanes.lanes()["default-0"] == "ACTIVE")
    assert [event["data"]["lane"] for event in lanes.events("server_ended")] == ["default-0"]
    assert lanes.listed("default-0") == set()
    assert program.pid in lanes.listed("default-1")
    # New work goes where the old work is.
    late = lanes.client()
    late.expect("started")
    assert lanes.of(late)["lane"] == "default-1"
    program.process.send_signal(signal.SIGTERM)
    program.expect("finished")


def test_the_incident_tells_survivors_from_victims(lanes: Lanes) -> None:
    program = lanes.served("cold")
    other = lanes.client()
    other.expect("started")
    lanes.fault()
    program.expect("went_over")
    other.expect("died")

    def look() -> dict[str, Any] | None:
        found = [each for each in lanes.asked("incidents")["incidents"] if each["survived"]]
        return found[0] if found else None

    incident = wait_for("an incident with a survivor", look)
    assert [each["pid"] for each in incident["survived"]] == [program.pid]
    assert program.pid not in [each["pid"] for each in incident["victims"]]
    assert other.pid in [each["pid"] for each in incident["victims"]]
    # It is not proven innocent.
    assert program.pid in [each["pid"] for each in incident["candidates"]]
    wait_for("it is counted", lambda: lanes.metric("mpsguard_incident_survivors_total") == 1)
    # The end of the server that the guard itself brought about is no incident.
    wait_for("the old lane recovers", lambda: lanes.lanes()["default-0"] == "ACTIVE")
    assert {each["fault_class"] for each in lanes.asked("incidents")["incidents"]} == {"mmu_or_sm"}


def test_what_will_not_live_is_known_beforehand(lanes: Lanes) -> None:
    program = lanes.served("cold", "--uses", "managed_memory")
    shown = {"survives": "no", "reason": "managed_memory"}
    wait_for("it is shown", lambda: lanes.asked("clients")["survival"] == [shown])
    assert "no: managed_memory" in lanes.ctl("clients").stdout
    lanes.fault()
    program.expect("died")
    (told,) = wait_for("the refusal is told", lambda: lanes.events("second_driver_refused"))
    assert (told["data"]["pid"], told["data"]["reason"]) == (program.pid, "managed_memory")
    assert lanes.metric("mpsguard_second_drivers_total", outcome="refused") == 1
    assert lanes.events("client_went_over") == []
    wait_for("the lane recovers by itself", lambda: lanes.lanes()["default-0"] == "ACTIVE")
    assert lanes.events("server_ended") == []


def test_a_server_is_not_ended_while_a_client_of_it_may_still_go_over(lanes: Lanes) -> None:
    first, second = lanes.served("cold"), lanes.served("cold")
    wait_for(
        "both have said so", lambda: [each["survives"] for each in lanes.asked("clients")["survival"]] == ["yes"] * 2
    )
    # It notices nothing, as an idle program.
    second.process.send_signal(signal.SIGSTOP)
    lanes.fault()
    first.expect("went_over")
    wait_for("the guard knows", lambda: lanes.of(first)["went_over_at"])
    # The guard looks once a second.
    wait_for("it has looked", lambda: len(lanes.events("lanes_changed_places")) == 1)
    assert lanes.lanes()["default-0"] == "FAULT"
    second.process.send_signal(signal.SIGCONT)
    second.expect("went_over")
    wait_for("the old lane recovers", lambda: lanes.lanes()["default-0"] == "ACTIVE")
    assert lanes.events("server_ended")[0]["data"]["went_over"] == 2


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_a_guard_that_comes_after_the_fault_takes_it_up(lanes: Lanes, mode: str) -> None:
    program = lanes.served(mode)
    if mode == "hot":
        wait_for("its second driver is known", lambda: lanes.of(program)["second_lane"])
    program.process.send_signal(signal.SIGSTOP)
    lanes.fault()
    wait_for("the lane is in fault", lambda: lanes.lanes()["default-0"] == "FAULT")
    lanes.kill()
    lanes.start()
    wait_for("it is adopted", lanes.clients)
    assert lanes.of(program)["lane"] == "default-0"
    program.process.send_signal(signal.SIGCONT)
    program.expect("went_over")
    wait_for("the guard knows", lambda: lanes.of(program)["went_over_at"])
    # And the next one knows what this one knew.
    lanes.kill()
    lanes.start()
    wait_for("it is adopted", lanes.clients)
    # Where the one before had yet to write it down, by what the client says.
    wait_for("its lanes are known", lambda: places(lanes, program) == ("default-1", "default-0"))
    wait_for("the old lane recovers", lambda: lanes.lanes()["default-0"] == "ACTIVE")


def places(lanes: Lanes, program: Program) -> tuple[str, str | None]:
    """The lane of a client, and the one before."""
    client = lanes.of(program)
    return client["lane"], client["lane_before"]


def test_hot_second_drivers_count_once(lanes: Lanes) -> None:
    program = lanes.served("hot")
    wait_for("its second driver is known", lambda: lanes.of(program)["second_lane"])
    assert lanes.metric("mpsguard_clients") == 1
    status = lanes.asked("status")["domains"][0]
    assert (status["clients"], status["spare_clients"]) == (1, 0)
    assert {program.pid} == lanes.listed("default-0") == lanes.listed("default-1")


def test_second_drivers_that_wait_hold_no_lane_that_faults(lanes: Lanes) -> None:
    program = lanes.served("hot")
    wait_for("its second driver is known", lambda: lanes.of(program)["second_lane"])
    lanes.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(lanes.public / "standby")
    lanes.fault()
    wait_for("that is told", lambda: lanes.events("second_driver_lost"))
    # The program works on its own lane, and would notice nothing until it ends.
    wait_for("the other lane recovers", lambda: lanes.lanes() == dict.fromkeys(("default-0", "default-1"), "ACTIVE"))
    assert [event["data"]["lane"] for event in lanes.events("server_ended")] == ["default-1"]
    assert lanes.asked("clients")["survival"] == [{"survives": "no", "reason": "second_lost"}]
    assert (lanes.of(program)["lane"], lanes.of(program)["second_lane"]) == ("default-0", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="classes need multiuser, and that root")
def test_a_second_driver_has_the_share_of_its_class() -> None:
    with Lanes(domain=CLASS) as lanes:
        lanes.start()
        lanes.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(lanes.public / "gold")
        program = lanes.served("cold")
        lanes.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(lanes.public)
        lanes.fault()
        program.expect("went_over")
        log = lanes.root / "log" / "default-1" / "server.log"
        wait_for("its server has told", lambda: f"levers of {program.pid}: share=25 " in log.read_text())
        client = wait_for("the guard knows", lambda: found if (found := lanes.of(program))["went_over_at"] else None)
        assert (client["service_class"], client["sm_share"]) == ("gold", 25)
        assert [each["clients"] for each in lanes.asked("classes")["classes"]] == [1]


def refused(lanes: Lanes) -> list[tuple[int, str]]:
    found = [event["data"] for event in lanes.events("connection_refused")]
    return [(event["pid"], event["reason"]) for event in found]


def test_a_stranger_is_no_second_driver(lanes: Lanes) -> None:
    """What connects to the directory of second drivers and is no client is turned away, whatever it says."""
    victim = lanes.served("cold")
    lanes.fault()
    victim.expect("went_over")
    lanes.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(lanes.public / "second")
    stranger = lanes.client()
    stranger.expect("died")
    assert refused(lanes) == [(stranger.pid, "second_driver")]
    assert [each["process"]["pid"] for each in lanes.clients()] == [victim.pid]


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_before_a_fault_another_user_connects_none_unless_it_may() -> None:
    with Lanes(domain="multiuser = true\n") as lanes:
        lanes.start()
        stranger = lanes.program(["/usr/bin/python3", "-c", AHEAD], user=STRANGER, group=STRANGER)
        stranger.expect("error")
        assert refused(lanes) == [(stranger.pid, "second_driver")]
        assert not os.stat(lanes.public / "second" / "ahead").st_mode & 0o001


def test_switched_off_there_is_no_directory() -> None:
    with Lanes(domain='second_driver = "off"\n') as off:
        off.start()
        assert not (off.public / "second").exists()
