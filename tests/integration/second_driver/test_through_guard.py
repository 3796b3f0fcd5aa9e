"""The preload at a real guard over the simulated daemon: an unmodified program goes over to the other lane.

The driver is the stand-in, which is a client of the simulated daemon here: its server tells it of the fault of a
simulated client. The preload finds the guard's directory for second drivers by itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded
from tests.integration.second_driver.bench import Bench
from tests.integration.second_driver.served import Served

pytestmark = pytest.mark.slow(seconds=40, reason="compiles the preload, starts guards with two lanes")

STRANGER = 65534


@pytest.fixture
def guard() -> Iterator[Guarded]:
    with Guarded(domain="standby = true\n") as running:
        running.start()
        yield running


def survival(guard: Guarded) -> list[dict[str, str] | None]:
    found: list[dict[str, str] | None] = guard.asked("clients")["survival"]
    return found


def state_of(guard: Guarded, lane: str) -> str:
    (state,) = [each["state"] for each in guard.asked("lanes")["lanes"] if each["name"] == lane]
    return str(state)


def fault(guard: Guarded) -> None:
    assert guard.client("--fault", "trap").expect("died")["error"] == 719


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_an_idle_program_goes_over(guard: Guarded, built: Bench, mode: str) -> None:
    served = Served(guard, built, mode)
    served.work_and_stand_still()
    wait_for("it says that it would live", lambda: survival(guard) == [{"survives": "yes", "reason": ""}])
    if mode == "hot":
        wait_for("its second driver is known", lambda: served.client(guard)["second_lane"] == "default-1")
    fault(guard)
    # Content, addresses and handles are as before: the program checks it.
    assert served.ask() == {"event": "done", "code": 0}, served.report()
    client = wait_for("the guard knows", lambda: found if (found := served.client(guard))["went_over_at"] else None)
    assert (client["lane"], client["lane_before"]) == ("default-1", "default-0")
    wait_for("the old lane recovers", lambda: guard.lane()["state"] == "ACTIVE")
    assert [event["data"]["went_over"] for event in guard.events("server_ended")] == [1]
    assert served.ask() == {"event": "done", "code": 0}


def goes_over(guard: Guarded, served: Served, mode: str, now: str, to: str) -> None:
    """A fault of the lane that a program is on, in which it goes on on the other one."""
    served.work_and_stand_still()
    wait_for("it says that it would live", lambda: survival(guard) == [{"survives": "yes", "reason": ""}])
    if mode == "hot":
        wait_for("its next driver is known", lambda: served.client(guard)["second_lane"] == to)
    fault(guard)
    assert served.ask() == {"event": "done", "code": 0}, served.report()
    client = wait_for("the guard knows", lambda: found if (found := served.client(guard))["lane"] == to else None)
    assert client["lane_before"] == now
    wait_for("the lane that it left recovers", lambda: state_of(guard, now) == "ACTIVE")


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_a_program_goes_over_and_back_and_over_again(guard: Guarded, built: Bench, mode: str) -> None:
    served = Served(guard, built, mode)
    lanes = ["default-0", "default-1"]
    for now, to in [lanes, lanes[::-1], lanes]:
        goes_over(guard, served, mode, now, to)
    assert len(guard.events("client_went_over")) == 3
    assert [event["data"]["went_over"] for event in guard.events("server_ended")] == [1, 1, 1]


def test_what_will_not_live_is_told_before_the_fault(guard: Guarded, built: Bench) -> None:
    served = Served(guard, built, "cold")
    assert served.ask("managed")["event"] == "done"
    wait_for("it is shown", lambda: survival(guard) == [{"survives": "no", "reason": "managed_memory"}])
    fault(guard)
    assert served.ask() == {"event": "lost", "code": 719}
    (told,) = wait_for("the refusal is told", lambda: guard.events("second_driver_refused"))
    assert (told["data"]["pid"], told["data"]["reason"]) == (served.program.pid, "managed_memory")


def test_a_guard_that_was_restarted_in_between_brings_it_over(guard: Guarded, built: Bench) -> None:
    served = Served(guard, built, "cold")
    served.work_and_stand_still()
    wait_for("it says that it would live", lambda: survival(guard) == [{"survives": "yes", "reason": ""}])
    fault(guard)
    wait_for("the lane is in fault", lambda: guard.lane()["state"] == "FAULT")
    guard.kill()
    guard.start()
    assert served.ask() == {"event": "done", "code": 0}, served.report()
    client = wait_for("the guard knows", lambda: found if (found := served.client(guard))["went_over_at"] else None)
    assert client["lane"] == "default-1"


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_hot_one_that_may_not_connect_ahead_is_made_after_the_fault(built: Bench) -> None:
    with Guarded(domain="standby = true\nmultiuser = true\n") as guard:
        guard.start()
        readable = Bench(guard.root / "built")
        shutil.copytree(built.built, readable.built)
        served = Served(guard, readable, "hot", user=STRANGER, group=STRANGER, extra_groups=())
        served.work_and_stand_still()
        wait_for("it says that it would live", lambda: survival(guard) == [{"survives": "yes", "reason": ""}])
        assert served.client(guard)["second_lane"] is None
        fault(guard)
        assert served.ask() == {"event": "done", "code": 0}, served.report()
        client = wait_for("the guard knows", lambda: found if (found := served.client(guard))["went_over_at"] else None)
        assert (client["uid"], client["lane"]) == (STRANGER, "default-1")
        assert guard.events("connection_refused") == []


def test_in_a_domain_with_one_lane_it_says_so(built: Bench) -> None:
    with Guarded() as guard:
        guard.start()
        served = Served(guard, built, "cold")
        assert served.ask()["event"] == "done"
        wait_for("it is shown", lambda: survival(guard) == [{"survives": "no", "reason": "no_other_lane"}])
