"""Repetition alone at a real guard over the simulated daemon: a culprit and innocents of one lane, with work in flight.

The driver is the stand-in, which is a client of the simulated daemon, and writes the kernel's lines into a stand-in for
its log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mpsguard.guard.triage.evidence_group import BEFORE
from tests.harness.guard_process import GuardProcess
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded
from tests.integration.second_driver.bench import SPARE, Bench
from tests.integration.second_driver.served import Served

pytestmark = pytest.mark.slow(seconds=40, reason="compiles the preload, starts guards with two lanes")


@contextmanager
def guarded(domain: str = "") -> Iterator[Guarded]:
    """A guard with two lanes, which reads a stand-in for the kernel log."""
    with Guarded(domain=f"standby = true\n{domain}") as guard:
        guard.process = GuardProcess(guard.config, guard.root, module="tests.integration.slurm.with_kernel_log")
        fifo = guard.root / "kmsg"
        os.mkfifo(fifo)
        writer = os.open(fifo, os.O_RDWR | os.O_CLOEXEC)
        guard.environment["KERNEL_LOG"] = str(fifo)
        try:
            guard.start()
            # Nothing is proven of a fault before which the kernel log was not read for so long.
            since = time.monotonic()
            wait_for("the log before a fault to be known", lambda: time.monotonic() > since + BEFORE)
            yield guard
        finally:
            os.close(writer)


def at_work(guard: Guarded, built: Bench, mode: str, count: int) -> list[Served]:
    """Programs that have answered a request each, and have a copy of their memory."""
    programs = [Served(guard, built, mode, spare=SPARE) for _ in range(count)]
    for each in programs:
        each.work_and_stand_still()
    wait_for(
        "all say that they would live",
        lambda: [each["survives"] for each in guard.asked("clients")["survival"]] == ["yes"] * count,
    )
    return programs


def outcomes(guard: Guarded) -> dict[int, str]:
    return {event["data"]["pid"]: event["data"]["outcome"] for event in guard.events("client_repeated_alone")}


def named(guard: Guarded) -> list[dict[str, Any]]:
    """The incidents in which a repetition names the culprit, with their ids."""
    found = [guard.json("incident", "show", each["id"]) for each in guard.asked("incidents")["incidents"]]
    return [each["incident"] | {"id": each["id"]} for each in found if each["incident"]["ground"] == "repeated_alone"]


def states(guard: Guarded) -> set[tuple[str, str]]:
    return {(event["data"]["lane"], event["data"]["state"]) for event in guard.events("lane_state")}


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_a_culprit_is_proven_by_its_repetition_and_hurts_no_other_lane(built: Bench, mode: str) -> None:
    with guarded() as guard:
        culprit, innocent = at_work(guard, built, mode, 2)
        guard.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(guard.public / "standby")
        beside = guard.client()
        beside.expect("started")
        assert innocent.ask("queue") == {"event": "done", "code": 0}
        assert culprit.ask("trap") == {"event": "lost", "code": 719}
        # With all that was in flight, bit for bit: the program checks it.
        assert innocent.ask() == {"event": "done", "code": 0}, innocent.report()
        wait_for(
            "both have said what became of it",
            lambda: outcomes(guard) == {culprit.program.pid: "faulted", innocent.program.pid: "completed"},
        )
        for outcome in ("faulted", "completed"):
            assert guard.metric("mpsguard_repetitions_total", outcome=outcome) == 1

        # The fault of the lane, and that of the repetition, which has no victims.
        found = wait_for("both faults are known", lambda: each if len(each := named(guard)) == 2 else None)
        assert {each["culprit"]["pid"] for each in found} == {culprit.program.pid}
        assert {each["confidence"] for each in found} == {"proven"}
        assert sorted(len(each["victims"]) + len(each["survived"]) for each in found) == [0, 1]
        client = wait_for("the guard knows", lambda: each if (each := innocent.client(guard))["went_over_at"] else None)
        assert client["lane"] == "default-1"
        assert beside.process.poll() is None
        assert ("default-1", "FAULT") not in states(guard)
        assert [event["data"]["lane"] for event in guard.events("server_ended")] in ([], ["default-0"])
        for each in found:
            assert "faulted again when repeated alone" in guard.ctl("incident", "show", each["id"]).stdout


def test_a_trusted_domain_repeats_beside_others(built: Bench) -> None:
    """And is ended by a culprit: the other lane is, with all its clients."""
    with guarded('repetition = "beside"\n') as guard:
        culprit, innocent = at_work(guard, built, "cold", 2)
        assert innocent.ask("queue") == {"event": "done", "code": 0}
        assert culprit.ask("trap") == {"event": "lost", "code": 719}
        wait_for("the other lane has a fault, too", lambda: ("default-1", "FAULT") in states(guard))
        assert outcomes(guard) == {}


def test_an_answer_is_for_the_process_that_asks(built: Bench) -> None:
    with guarded() as guard:
        (program,) = at_work(guard, built, "cold", 1)
        assert program.client(guard)["lane"] == "default-0"
        said = guard.ui("get_mpsguard_repetition", pipe_directory=guard.public / "second").stdout
        assert said.split() == ["alone"]
        # Elsewhere it is a command like any other, which the daemon does not know.
        assert "alone" not in guard.ui("get_mpsguard_repetition").stdout.split()
