"""Settings through the guard, over the vendor's control daemon and the simulated server: kept as they were asked for.

The simulated server, which the vendor's daemon starts, writes down what a client gets to the byte: the daemon shows
less.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from fault_injection.sim.stack import BIN
from mpsguard.guard.lanes import command as commands
from mpsguard.guard.lanes import control_process, settings
from mpsguard.guard.lanes.command import Command, CommandReply
from mpsguard.guard.lanes.levers import LeverError, Levers, ServerLevers
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.stat_reader import StatReader
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded
from tests.integration.sim.test_classes import come, levers
from tests.integration.vendor.odd_values import PUBLIC
from tests.unit.sim import raw
from tests.vendor import VendorMps

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the simulated server's users"),
]

MIB = 1 << 20


UUID = "GPU-f22fb098-d1b3-3806-2655-ba25f02229c1"


def variables(mps: VendorMps) -> dict[str, str]:
    """What a guard over a branch is started with."""
    return {"PATH": mps.environment(BIN, BIN)["PATH"], "MPSGUARD_SIM_PYTHON": sys.executable}


@pytest.fixture
def guarded(vendor_mps: VendorMps) -> Iterator[Guarded]:
    # Restarts are what is tried here.
    policy = "restart_burst = 100"
    with Guarded(vendor_mps.control, policy=policy, environment=variables(vendor_mps)) as running:
        # The daemon looks its server up in PATH.
        servers = running.root / "servers"
        servers.mkdir()
        (servers / "nvidia-cuda-mps-server").symlink_to(BIN / "nvidia-cuda-mps-server")
        running.environment["PATH"] = f"{servers}:{running.environment['PATH']}"
        running.hold_sockets()
        running.start()
        yield running


def restart_lane(guarded: Guarded) -> None:
    """Kill the control daemon, and wait for its successor."""
    first = guarded.lane()["control"]["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for("a new daemon", lambda: (guarded.lane()["control"] or {"pid": first})["pid"] != first)
    guarded.lane_in("ACTIVE")


def shown(guarded: Guarded) -> str:
    return guarded.ui(*settings.QUERIES).stdout


def test_a_new_server_has_what_was_asked_for_to_the_byte(guarded: Guarded) -> None:
    """NVIDIA/k8s-device-plugin #764, #594 and #1119: limits of total by replicas."""
    guarded.ui(
        "set_default_active_thread_percentage 33.333",
        "set_default_client_priority 1",
        "set_default_device_pinned_mem_limit 0 4606M",
        "set_default_device_pinned_mem_limit 1 1000MB",
        "set_default_device_pinned_mem_limit 2 1.5G",
    )
    wanted = f"share=33.333 priority=1 0={4606 * MIB} 1={1000 * MIB} 2={MIB}"
    restart_lane(guarded)
    client = come(guarded)
    assert levers(guarded, client.pid) == wanted
    # Also the next guard, and its lane after a fall.
    guarded.kill()
    guarded.start()
    restart_lane(guarded)
    assert levers(guarded, come(guarded).pid) == wanted


GROUPS = (
    [command for _, command in PUBLIC if "SERVER" not in command],
    # What is refused leaves what was there; what is nonsense takes a limit away, or sets another one.
    ["set_default_active_thread_percentage 40", "set_default_active_thread_percentage 150"],
    ["set_default_active_thread_percentage 50%", "set_default_active_thread_percentage 100.05"],
    [
        "set_default_active_thread_percentage 0x10",
        "set_default_active_thread_percentage",
        "set_default_client_priority 7",
    ],
    ["set_default_client_priority 1", "set_default_client_priority normal"],
    ["set_default_client_priority 1", "set_default_client_priority", "set_default_client_priority 4294967297"],
    ["set_default_device_pinned_mem_limit 0 4606M", "set_default_device_pinned_mem_limit GPU-1234 9216M"],
    ["set_default_device_pinned_mem_limit 0 4606M", "set_default_device_pinned_mem_limit 0=1G"],
    ["set_default_device_pinned_mem_limit 0 3G", "set_default_device_pinned_mem_limit"],
    ["set_default_device_pinned_mem_limit 1 3G", "set_default_device_pinned_mem_limit +1 900"],
    ["set_default_device_pinned_mem_limit 1 3G", "set_default_device_pinned_mem_limit 01 0"],
    ["set_default_device_pinned_mem_limit 1 3G", "set_default_device_pinned_mem_limit 32 5G"],
    ["set_default_device_pinned_mem_limit\t31\t-1", "set_default_device_pinned_mem_limit 30 99999999999999999999"],
)


def test_what_is_shown_before_a_restart_is_shown_after_it(guarded: Guarded) -> None:
    for group in GROUPS:
        guarded.ui(*group)
        before = shown(guarded)
        restart_lane(guarded)
        assert shown(guarded) == before, (
            group,
            [each["kind"] for each in guarded.asked("events")["events"]],
            guarded.lane(),
        )


def test_what_was_set_past_the_guard_is_told_of(guarded: Guarded) -> None:
    guarded.ui("set_default_client_priority 1")
    past = ("set_default_active_thread_percentage 40", "set_default_device_pinned_mem_limit 3 1536M")
    guarded.ui(*past, pipe_directory=guarded.pipe)
    guarded.kill()
    guarded.start()
    unasked = {"active_thread_percentage": "40.0", "device_pinned_mem_limit 3": "1G"}
    wait_for("what nobody asked for", lambda: guarded.lane()["unasked"] == unasked)
    notes = [note for note in guarded.json("status")["notes"] if "not replayed" in note]
    assert len(notes) == 2
    # Asked for, it is a setting as any other.
    guarded.ui("set_default_device_pinned_mem_limit 3 1536M")
    assert guarded.lane()["unasked"] == {"active_thread_percentage": "40.0"}
    restart_lane(guarded)
    assert guarded.lane()["unasked"] == {}
    assert (
        guarded.ui("get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 3").stdout
        == "100.0\n1G\n"
    )


def test_the_standbys_lane_has_what_was_asked_for_too(vendor_mps: VendorMps) -> None:
    with Guarded(vendor_mps.control, domain="standby = true", environment=variables(vendor_mps)) as guarded:
        guarded.start()
        wait_for("both lanes", lambda: all(each["control"] for each in guarded.asked("lanes")["lanes"]))
        guarded.ui("set_default_device_pinned_mem_limit 0 4606M", "set_default_active_thread_percentage 33.333")
        kept = [each["settings"] for each in guarded.asked("lanes")["lanes"]]
        assert [each["pinned_device_memory_limit"] for each in kept] == [{"0": "4606M"}] * 2
        assert [each["active_thread_percentage"] for each in kept] == [33.333] * 2


def test_a_long_command_ends_no_daemon(guarded: Guarded) -> None:
    """The vendor's daemon does not survive one of 4,202 bytes: no user's command of that length reaches it."""
    first = guarded.lane()["control"]["pid"]
    refused = guarded.ctl("mps", "x" * 5000)
    assert refused.returncode != 0
    assert guarded.ui("get_default_client_priority").stdout == "0\n"
    assert guarded.lane()["control"]["pid"] == first


def test_a_quit_that_the_daemon_refuses_is_none(guarded: Guarded) -> None:
    """It refuses root's by the public socket too: the lane is looked after as before."""
    said = raw.ask(guarded.public / "control", "quit", "get_default_client_priority")
    assert said == ["Not enough privilege to execute quit command", "0"]
    restart_lane(guarded)
    assert guarded.ui("get_default_client_priority").stdout == "0\n"


def test_a_limit_by_uuid_takes_no_other_away(vendor_mps: VendorMps) -> None:
    """535 and 550 read each UUID as the first device, and its limit as none (NVIDIA/k8s-device-plugin #572)."""
    configured = f'pinned_device_memory_limit = {{ 0 = "4606M", "{UUID}" = "8G" }}'
    with Guarded(vendor_mps.control, settings=configured, environment=variables(vendor_mps)) as guarded:
        guarded.start()
        guarded.lane_in("ACTIVE")
        assert guarded.ui("get_default_device_pinned_mem_limit 0").stdout == "4G\n"
        (failed,) = guarded.events("lane_settings_failed")
        assert UUID in failed["data"]["detail"]


def test_a_lever_by_uuid_takes_no_other_away(guarded: Guarded) -> None:
    guarded.ui("set_default_device_pinned_mem_limit 0 4606M")
    client = come(guarded)
    lane = guarded.lane()["servers"][0]["process"]

    async def ask(line: str) -> CommandReply:
        return await commands.ask(guarded.pipe, Command(line), 10.0)

    async def work() -> None:
        server = ProcessKey(lane["pid"], lane["start_ticks"])
        held = ServerLevers(ask, guarded.root / "levers.json", StatReader().is_running, Levers)
        with pytest.raises(LeverError):
            async with held.moved(server, Levers(limits={UUID: "8G"}), 0):
                pass

    asyncio.run(asyncio.wait_for(work(), 60))
    assert levers(guarded, come(guarded).pid) == levers(guarded, client.pid) == f"share=100 priority=0 0={4606 * MIB}"


def test_a_pid_file_that_was_left_names_no_other_daemon(guarded: Guarded) -> None:
    """The daemon of 550 writes over what is there: 434 over 23407 is 43407."""
    (guarded.pipe / control_process.PID_FILE).write_text("9999999")
    restart_lane(guarded)
