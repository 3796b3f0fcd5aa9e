"""Memory limits of classes over the simulated stack: a client that sheds its own is found, and ended by policy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fault_injection.sim.memory_limit import VARIABLE
from mpsguard.linux.processes import procfs
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program

pytestmark = [
    pytest.mark.slow(seconds=30, reason="starts guards and clients"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

STRANGER = 65534
LIMIT = 64 << 20
FILLS = 1000
"""MiB: more than limit and tolerance together."""
SHEDDING = ("0=2G,1=4G", "1=4G", "x=y")
CLASSES = """
multiuser = true
[[domain.class]]
name = "told"
choosers = "anyone"
memory_limit = { 0 = "64M" }
[[domain.class]]
name = "ended"
choosers = "anyone"
memory_limit = { 0 = "64M" }
memory_over = "terminate"
"""


EXECUTES = """
import json, os, sys
from fault_injection.sim.cuda import CudaProcess
space, plain = os.open("/dev/full", os.O_RDWR | os.O_APPEND), os.open("/dev/full", os.O_RDWR)
cuda = CudaProcess()
cuda.init()
cuda.create_context(int(sys.argv[2]))
print(json.dumps(dict(event="started")), flush=True)
if not os.read(0, 1):
    sys.exit()
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[1], sys.argv[3], "0"])
"""
"""Takes as many MiB as its first argument says; when told to, it executes itself, to take as many as its second one."""


@contextmanager
def measuring(domain: str = CLASSES, settings: str = "") -> Iterator[Guarded]:
    with Guarded(domain=domain, settings=settings) as running:
        running.process.module = "tests.hostile.measuring_guard"
        running.start()
        yield running


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with measuring() as running:
        yield running


def come(guarded: Guarded, service_class: str, mib: int, **variables: str) -> Program:
    environment = guarded.environment | variables
    environment["CUDA_MPS_PIPE_DIRECTORY"] = str(guarded.public / service_class)
    client = ["/usr/bin/python3", "-m", "fault_injection.sim.client", "--memory-mib", str(mib)]
    program = Program(client, environment, user=STRANGER, group=STRANGER)
    guarded._programs.append(program)
    return program


@pytest.mark.parametrize(("mib", "is_ended"), [(FILLS, True), (100, False)])
def test_what_its_earlier_program_may_have_left_hides_no_more_than_that(mib: int, is_ended: bool) -> None:
    """A lifeline is held under the pid of a process that executed another program, as long as its GPU work goes on."""
    settings = CLASSES.replace("[[domain.class]]", "[domain.lifelines]\ncrash_hold = 600\n[[domain.class]]", 1)
    with Guarded(domain=settings) as guarded:
        guarded.process.module = "tests.hostile.measuring_with_driver"
        guarded.start()
        read, write = os.pipe()
        environment = guarded.environment | {VARIABLE: "x=y"}
        environment["CUDA_MPS_PIPE_DIRECTORY"] = str(guarded.public / "ended")
        command = ["/usr/bin/python3", "-c", EXECUTES, EXECUTES, "1", str(mib)]
        client = Program(command, environment, user=STRANGER, group=STRANGER, stdin=read)
        guarded._programs.append(client)
        os.close(read)
        client.expect("started")
        wait_for("it is watched", lambda: any(each["watched"] for each in guarded.asked("clients")["watches"]))
        os.write(write, b".")
        client.expect("started")
        (lifeline,) = guarded.asked("lifelines")["lifelines"]
        assert lifeline["pid"] == client.pid
        if is_ended:
            (told,) = wait_for("the excess is told", lambda: excesses(guarded))
            assert (told["pid"], told["action"]) == (client.pid, "terminate")
            wait_for("the end is told", lambda: guarded.events("client_terminated"))
        else:
            # A client that comes later and is ended: readings have been compared since.
            come(guarded, "ended", FILLS, **{VARIABLE: "x=y"}).wait()
            assert [each["pid"] == client.pid for each in excesses(guarded)] == [False]
        os.close(write)


def excesses(guarded: Guarded) -> list[dict[str, Any]]:
    return [event["data"] for event in guarded.events("memory_limit_exceeded")]


def test_the_simulated_driver_has_the_limit_shed_as_the_vendors_does(guarded: Guarded) -> None:
    for value in (None, "0=2G", "0=32M"):
        refused = come(guarded, "told", 65, **({VARIABLE: value} if value else {}))
        assert refused.expect("started", "died")["event"] == "died"
        assert refused.wait() == 3
    for value in SHEDDING:
        come(guarded, "told", 65, **{VARIABLE: value}).expect("started")


@pytest.mark.parametrize("value", SHEDDING)
def test_a_client_that_sheds_its_limit_is_ended_and_no_other(guarded: Guarded, value: str) -> None:
    honest = come(guarded, "ended", 64)
    honest.expect("started")
    shedding = come(guarded, "ended", FILLS, **{VARIABLE: value})
    shedding.expect("started")
    assert shedding.wait() in (3, -15, 0)
    hints = [event["data"] for event in guarded.events("class_not_applied")]
    assert [(hint["pid"], value in hint["detail"]) for hint in hints] == [(shedding.pid, True)]
    (told,) = excesses(guarded)
    assert told["pid"] == shedding.pid
    assert (told["service_class"], told["limit"], told["action"]) == ("ended", LIMIT, "terminate")
    assert (told["bytes"], told["gpu"], told["limit_of"]) == (FILLS << 20, "0000:06:00", "class")
    ended = wait_for("the end is told", lambda: guarded.events("client_terminated"))
    assert [event["data"]["pid"] for event in ended] == [shedding.pid]
    assert guarded.metric("mpsguard_memory_limit_exceeded_total", **{"class": "ended"}) == 1
    assert procfs.state(honest.pid) not in (None, "Z")


def test_by_default_it_is_told_once_and_lives(guarded: Guarded) -> None:
    shedding = come(guarded, "told", FILLS, **{VARIABLE: "x=y"})
    shedding.expect("started")
    wait_for("the excess is told", lambda: excesses(guarded))
    shown = guarded.json("clients")["memory"]
    assert shown == [{"bytes": FILLS << 20, "exceeds": True}]
    assert f"{FILLS}M OVER" in guarded.ctl("clients").stdout
    come(guarded, "ended", FILLS, **{VARIABLE: "x=y"}).wait()
    # Several readings later:
    assert [each["service_class"] for each in excesses(guarded)] == ["told", "ended"]
    assert procfs.state(shedding.pid) not in (None, "Z")


def test_beyond_the_default_of_the_domain_a_client_is_told_of_and_lives() -> None:
    with measuring(domain="multiuser = true", settings='pinned_device_memory_limit = { 0 = "64M" }') as guarded:
        client = come(guarded, "", FILLS, **{VARIABLE: "x=y"})
        client.expect("started")
        (told,) = wait_for("the excess is told", lambda: excesses(guarded))
        assert (told["limit_of"], told["action"], told["service_class"]) == ("domain", "report", None)
        assert procfs.state(client.pid) not in (None, "Z")


def test_without_nvml_it_is_told_that_limits_are_not_measured_and_the_next_guard_only_reports() -> None:
    """What a client was given by a guard before this one is not known for certain: it is not ended for it."""
    with Guarded(domain=CLASSES) as guarded:
        guarded.start()
        client = come(guarded, "ended", FILLS, **{VARIABLE: "x=y"})
        client.expect("started")
        (unmeasured,) = wait_for("it is told", lambda: guarded.events("memory_limit_unmeasured"))
        assert "NVML" in unmeasured["data"]["detail"]
        guarded.process.kill()
        guarded.process.module = "tests.hostile.measuring_guard"
        guarded.start()
        (told,) = wait_for("the excess is told", lambda: excesses(guarded))
        assert (told["pid"], told["action"]) == (client.pid, "report")
        assert procfs.state(client.pid) not in (None, "Z")
