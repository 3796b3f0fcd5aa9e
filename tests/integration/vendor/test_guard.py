"""The guard over the vendor's own control daemon: no GPU is needed for anything but the server, which ends at once."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.guard.lanes import command as commands
from mpsguard.guard.lanes.command import Command, CommandReply
from mpsguard.guard.lanes.levers import LeverError, Levers, ServerLevers
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.stat_reader import StatReader
from tests.harness.stopped import stopped
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, is_running
from tests.integration.peer import Peer
from tests.vendor import VendorMps

pytestmark = pytest.mark.vendor

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users' processes")

COMMANDS = (
    "get_server_list",
    "get_server_status 1",
    "get_client_list 1",
    "get_device_client_list",
    "ps",
    "ps -p 1",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 150",
    "get_active_thread_percentage 1",
    "set_active_thread_percentage 1 50",
    "get_default_device_pinned_mem_limit 0",
    "get_default_client_priority",
    "set_default_client_priority 7",
    "shutdown_server 1",
    "terminate_client 1 2",
    "no_such_command",
    "",
)
"""Commands that leave the daemon as it was, so that they can be given twice."""


@pytest.fixture
def guarded(vendor_mps: VendorMps) -> Iterator[Guarded]:
    # The control daemon looks its server up in PATH.
    path = vendor_mps.environment(Path("/"), Path("/"))["PATH"]
    with Guarded(vendor_mps.control, environment={"PATH": path}, settings="active_thread_percentage = 70") as running:
        running.hold_sockets()
        running.start()
        yield running


def test_every_command_answers_through_the_guard_as_at_the_daemon(guarded: Guarded) -> None:
    for command in COMMANDS:
        through, direct = guarded.ui(command), guarded.ui(command, pipe_directory=guarded.pipe)
        assert (through.stdout, through.stderr, through.returncode) == (
            direct.stdout,
            direct.stderr,
            direct.returncode,
        ), command
    many = guarded.ui(*COMMANDS).stdout
    assert many == guarded.ui(*COMMANDS, pipe_directory=guarded.pipe).stdout


@ROOT
@pytest.mark.root
def test_the_daemons_rules_for_users_hold_through_the_guard(guarded: Guarded) -> None:
    for command in ("get_server_list", "set_default_active_thread_percentage 10", "terminate_client 1 2", "quit"):
        through = guarded.ui(command, user=65534, group=65534)
        # As the daemon itself would see that user: the private directory lets its own group pass alone.
        direct = guarded.ui(command, pipe_directory=guarded.pipe, user=65534, group=os.getegid())
        if command == "quit" and direct.returncode == 0 and not direct.stdout:
            pytest.skip("this driver lets anybody quit: the lane is gone after the direct try")
        assert (through.stdout, through.returncode) == (direct.stdout, direct.returncode), command


def test_a_killed_guard_leaves_the_daemon_to_its_successor(guarded: Guarded) -> None:
    before = guarded.lane()
    guarded.kill()
    guarded.start()
    after = guarded.lane()
    assert after["adopted"]
    assert after["control"] == before["control"]


def test_a_dead_daemon_is_replaced_and_has_its_settings_again(guarded: Guarded) -> None:
    guarded.ui("set_default_active_thread_percentage 40", "set_default_device_pinned_mem_limit 0 3G")
    guarded.ui("set_default_client_priority 1")
    first = guarded.lane()["control"]["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for("a new daemon", lambda: (guarded.lane()["control"] or {"pid": first})["pid"] != first)
    guarded.lane_in("ACTIVE")
    for query, value in (
        ("get_default_active_thread_percentage", "40.0\n"),
        ("get_default_device_pinned_mem_limit 0", "3G\n"),
        ("get_default_client_priority", "1\n"),
    ):
        assert guarded.ui(query).stdout == value


def test_a_client_gets_the_daemons_own_no_when_no_server_can_start(guarded: Guarded) -> None:
    with Peer(guarded.pipe) as direct, Peer(guarded.public) as through:
        assert direct.connect_as_client() is False
        assert through.connect_as_client() is False
    assert guarded.lane_in("FAILING")["control"]
    assert len(guarded.events("client_turned_away")) == 1


def test_the_vendors_daemon_keeps_out_of_a_directory_the_guard_serves(guarded: Guarded) -> None:
    refused = subprocess.run(
        [str(guarded.control), "-d"], env=guarded.environment, capture_output=True, check=False, timeout=30
    )
    assert refused.returncode != 0
    assert guarded.ctl("status").returncode == 0


def test_the_guard_keeps_out_of_a_directory_the_vendors_daemon_serves(vendor_mps: VendorMps) -> None:
    path = vendor_mps.environment(Path("/"), Path("/"))["PATH"]
    with Guarded(vendor_mps.control, environment={"PATH": path}) as guarded:
        guarded.public.mkdir()
        environment = {**guarded.environment, "CUDA_MPS_LOG_DIRECTORY": str(guarded.public)}
        subprocess.run([str(guarded.control), "-d"], env=environment, check=True, timeout=30)
        try:
            guarded.start(ready=False)
            assert guarded.guard.wait(30) == 1
            assert guarded.ui("get_default_client_priority").stdout == "0\n"
        finally:
            guarded.ui("quit")


def test_quit_ends_the_daemon_as_stock_and_the_guard_with_it(guarded: Guarded) -> None:
    done = guarded.ui("quit")
    assert (done.stdout, done.returncode) == ("", 0)
    assert guarded.guard.wait(30) == 0


SERVER = """#!/bin/sh
{{ id -u; id -g; [ -w "$CUDA_MPS_PIPE_DIRECTORY/control" ] && echo reached; }} > {said}.new
mv {said}.new {said}
exit 1
"""


@ROOT
@pytest.mark.root
def test_a_server_of_another_user_reaches_the_lane_and_that_users_processes_do_not(vendor_mps: VendorMps) -> None:
    """The server is a stand-in: what counts is with which identity the vendor's control daemon starts it."""
    path = vendor_mps.environment(Path("/"), Path("/"))["PATH"]
    with Guarded(vendor_mps.control, domain="multiuser = false") as guarded:
        programs, said = guarded.root / "bin", guarded.root / "said" / "server"
        programs.mkdir()
        said.parent.mkdir()
        said.parent.chmod(0o777)
        server = programs / "nvidia-cuda-mps-server"
        server.write_text(SERVER.format(said=said))
        server.chmod(0o755)
        guarded.environment["PATH"] = f"{programs}{os.pathsep}{path}"
        guarded.start()
        guarded.lane_in("ACTIVE")
        guarded.ui("start_server -uid 65534")
        wait_for("the server's word", said.exists)
        assert said.read_text().split() == ["65534", str(os.getegid()), "reached"]
        said.unlink()
        environment = {**guarded.environment, "CUDA_MPS_PIPE_DIRECTORY": str(guarded.pipe)}
        subprocess.run([server], env=environment, user=65534, group=65534, extra_groups=[], check=False, timeout=30)
        assert said.read_text().split() == ["65534", "65534"]


def test_levers_are_moved_and_read_back_at_the_vendors_daemon(guarded: Guarded, tmp_path: Path) -> None:
    async def ask(line: str) -> CommandReply:
        return await commands.ask(guarded.pipe, Command(line), 10.0)

    async def work() -> None:
        levers = ServerLevers(ask, tmp_path / "levers.json", StatReader().is_running, Levers)
        async with levers.moved(procfs.process_key(os.getpid()), Levers(priority=1), 0):
            assert (await ask("get_default_client_priority")).lines == ("1",)
        assert (await ask("get_default_client_priority")).lines == ("0",)
        # Without a GPU there is no server: the daemon says so, and no share is taken for one that it has.
        for missing in (Levers(share=40.0), Levers(limits={"0": "2G"})):
            with pytest.raises(LeverError):
                async with levers.moved(procfs.process_key(os.getpid()), missing, 0):
                    pass

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_lane_without_its_directory_is_started_anew(guarded: Guarded) -> None:
    """The vendor's daemon quits by a descriptor of the socket that has lost its name."""
    before = guarded.lane()["control"]
    with stopped(guarded.guard.pid):
        shutil.rmtree(guarded.pipe)
    wait_for("another control daemon", lambda: guarded.lane()["control"] not in (None, before))
    guarded.lane_in("ACTIVE")
    assert guarded.ui("get_default_active_thread_percentage").stdout == "70.0\n"
    wait_for("the old one's end", lambda: not is_running(ProcessKey(**before)))
