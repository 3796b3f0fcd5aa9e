"""`nvidia-cuda-mps-control` of ours over the vendor's own control daemon, as a site would use it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.harness.waiting import wait_for
from tests.integration.guarded import SIMULATED
from tests.integration.vendor.site import DEADLINE, Site, newest
from tests.integration.vendor.test_guard import COMMANDS

pytestmark = pytest.mark.vendor

QUERY = "get_default_active_thread_percentage"


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(newest()) as there:
        yield there


def test_start_ask_kill_quit(site: Site) -> None:
    nothing = site.run(given=QUERY)
    assert (nothing.stderr, nothing.returncode) == ("Cannot find MPS control daemon process\n", 1)

    started = site.run("-d")
    assert (started.stdout, started.stderr, started.returncode) == ("", "", 0)
    # What asks does not end the line: the device plugin does not.
    for program in (site.program, site.vendor):
        asked = site.run(program=program, given=QUERY)
        assert (asked.stdout, asked.returncode) == ("100.0\n", 0)
    # What follows the program's name is a command, as in Slurm's sample prolog.
    assert site.run("set_default_active_thread_percentage", "40").stdout == "40.0\n"
    assert "Cmd:set_default_active_thread_percentage 40" in (site.logs / "control.log").read_text()

    again = site.run("-d")
    assert (again.returncode, again.stdout) == (0, "")
    assert site.run("-d", program=site.vendor).returncode == 1

    # A guard that dies has a successor, and what comes meanwhile waits in the sockets.
    (guard,) = site.processes("mpsguard.cli.guard")
    os.kill(guard, signal.SIGKILL)
    assert site.run(given=f"{QUERY}\n").stdout == "40.0\n"
    assert site.processes("mpsguard.cli.guard") != [guard]

    assert site.run(given="quit").returncode == 0
    wait_for("the end of all", lambda: not site.processes("mpsguard") and not site.processes("mps-control"))


def test_every_command_answers_as_with_the_vendors_program(site: Site) -> None:
    site.run("-d")
    given = "\n".join(COMMANDS)
    ours, vendors = site.run(given=given), site.run(program=site.vendor, given=given)
    assert (ours.stdout, ours.stderr, ours.returncode) == (vendors.stdout, vendors.stderr, vendors.returncode)
    # `start_server -uid`: the vendor's daemon tries, and without a GPU its server ends at once.
    assert site.run("start_server", "-uid", str(os.getuid())).stdout == ""
    wait_for("a server", lambda: "NEW SERVER" in (log := (site.logs / "control.log").read_text()) or "exited" in log)


def test_beside_the_vendors_daemon_no_guard_starts(site: Site) -> None:
    site.pipes.mkdir()
    site.logs.mkdir()
    subprocess.run([site.vendor, "-d"], env=site.environment, check=True, timeout=DEADLINE, stdin=subprocess.DEVNULL)
    refused = site.run("-d")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    # It is served nevertheless.
    assert site.run(given=QUERY).stdout == "100.0\n"
    site.run(given="quit")


def test_in_the_foreground_and_for_many_users(site: Site) -> None:
    """Over the simulated daemon, as these branches of the vendor's do not know -M."""
    site.environment["MPSGUARD_CONTROL_BINARY"] = str(SIMULATED)
    with subprocess.Popen([site.program, "-f", "-M"], env=site.environment, stderr=subprocess.DEVNULL) as running:
        wait_for("an answer", lambda: site.run(given=QUERY).returncode == 0)
        lanes = site.processes("nvidia-cuda-mps-control -M -d")
        assert lanes
        running.terminate()
        assert running.wait(DEADLINE) == 0
    # Its lane lives on, and the next guard adopts it.
    assert site.run("-d", "-M").returncode == 0
    assert site.processes("nvidia-cuda-mps-control -M -d") == lanes


def test_a_directory_of_another_user_is_refused(site: Site) -> None:
    """Root would write through what that user has put there."""
    site.pipes.mkdir()
    site.pipes.chmod(0o777)
    refused = site.run("-d")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert list(site.pipes.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "variables", "status"),
    [
        (("-d",), {"CUDA_VISIBLE_DEVICES": "0,every"}, 1),
        (("-d",), {"CUDA_MPS_PIPE_DIRECTORY": "/proc/mps"}, 1),
        (("-d",), {"MPSGUARD_STARTED_BY_DROPIN": "1"}, 1),
        (("-d",), {"MPSGUARD_CONTROL_BINARY": "no-such-program"}, 1),
        (("-d", "quit"), {}, 2),
        (("-M",), {}, 2),
    ],
)
def test_what_cannot_be_is_one_line(
    site: Site, arguments: tuple[str, ...], variables: dict[str, str], status: int
) -> None:
    refused = site.run(*arguments, variables=variables)
    assert refused.returncode == status
    assert len([line for line in refused.stderr.splitlines() if not line.startswith((" ", "usage"))]) == 1
    assert not site.processes("mpsguard.cli.guard")
