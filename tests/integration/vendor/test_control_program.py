"""`nvidia-cuda-mps-control` of ours over the vendor's own control daemon, as a site would use it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from mpsguard.guard.lanes import command as commands
from mpsguard.guard.lanes.command import Command, CommandDroppedError
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.guarded import SIMULATED
from tests.integration.vendor.site import Site, newest
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
    subprocess.run([site.vendor, "-d"], env=site.environment, check=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
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
        assert running.wait(PATIENCE) == 0
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
        (("-d",), {"CUDA_MPS_PIPE_DIRECTORY": "/proc/mps"}, 1),
        (("-d",), {"CUDA_MPS_PIPE_DIRECTORY": f"/tmp/{'0' * 110}"}, 1),
        (("get_server_list",), {"CUDA_MPS_PIPE_DIRECTORY": f"/tmp/{'0' * 110}"}, 1),
        (("-d",), {"MPSGUARD_STARTED_BY_DROPIN": "1"}, 1),
        (("-d",), {"MPSGUARD_CONTROL_BINARY": "no-such-program"}, 1),
        (("-d", "quit"), {}, 2),
        (("-q", "quit"), {}, 2),
        (("-d", "-f"), {}, 2),
        (("-M",), {}, 2),
        (("-p",), {}, 2),
        # A public script has `sudo -E nvidia-cuda-mps-control -s -d -q`; the vendor's front reads its input then.
        (("-s", "-d", "-q"), {}, 2),
        (("--no-such-option",), {}, 2),
        (("-S",), {}, 3),
        (("-d", "-S"), {}, 3),
        (("-dS",), {}, 3),
        (("--static-partitioning",), {}, 3),
        (("-f", "-p", "3"), {}, 3),
        (("--protocol=3", "server", "list"), {}, 3),
        (("-p", "2", "-d"), {"CUDA_MPS_PROTOCOL_VERSION": "3"}, 3),
        (("-f", "-a", "/etc/mps.toml"), {}, 3),
    ],
)
def test_what_cannot_be_is_one_line(
    site: Site, arguments: tuple[str, ...], variables: dict[str, str], status: int
) -> None:
    refused = site.run(*arguments, variables=variables)
    assert refused.returncode == status
    assert (refused.stdout, len(refused.stderr.splitlines())) == ("", 1)
    assert not site.processes("mpsguard.cli.guard")


@pytest.mark.parametrize("option", ["-q", "--quit", "-quit"])
def test_quit_as_an_option(site: Site, option: str) -> None:
    """MPS quick start; ExecStop of public units; `sudo nvidia-cuda-mps-control -quit || true` in a set-up script."""
    nothing = site.run(option)
    assert (nothing.stderr, nothing.returncode) == ("Cannot find MPS control daemon process\n", 1)
    # What a job's standard input has is not read.
    assert site.run("-d", "-p", "2", variables={"CUDA_MPS_PROTOCOL_VERSION": "2"}).returncode == 0
    ended = site.run(option, given="get_server_list\n")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)
    wait_for("the end of all", lambda: not site.processes("mpsguard") and not site.processes("mps-control"))


@pytest.mark.parametrize(
    "arguments",
    [
        # aws/amazon-ecs-ami #744: the unit of an AMI
        ("-f", "-multiuser-server"),
        ("--foreground", "--multiuser"),
        ("-f", "-m", "-p2"),
    ],
)
def test_long_forms_start_the_same(site: Site, arguments: tuple[str, ...]) -> None:
    site.environment["MPSGUARD_CONTROL_BINARY"] = str(SIMULATED)
    with subprocess.Popen([site.program, *arguments], env=site.environment, stderr=subprocess.DEVNULL) as running:
        wait_for("an answer", lambda: site.run(given=QUERY).returncode == 0)
        assert site.processes("nvidia-cuda-mps-control -M -d")
        # NVIDIA/k8s-device-plugin #1614: `-f` in a container, and its logs are read from outside.
        assert "Starting control daemon" in (site.logs / "control.log").read_text()
        assert site.run("-q").returncode == 0
        assert running.wait(PATIENCE) == 0


def test_without_standard_streams(site: Site) -> None:
    """Programs start it with them closed; the vendor's front waits for ever without its input."""
    assert site.run("-d").returncode == 0
    for closed in ("<&-", ">&-", "<&- >&- 2>&-"):
        shell = ["bash", "-c", f"{site.program} {closed}"]
        done = subprocess.run(shell, env=site.environment, capture_output=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr) == (0, b""), closed


def test_a_daemon_that_has_no_place_is_busy_and_not_gone(site: Site) -> None:
    """The vendor's daemon serves one command line at a time, and drops the others; a `quit` is not tried for ever."""
    assert site.run("-d", program=site.vendor).returncode == 0
    with subprocess.Popen([site.vendor], env=site.environment, stdin=subprocess.PIPE) as sits:
        assert sits.stdin is not None
        sits.stdin.write(b"get_server_list\n")
        sits.stdin.flush()
        wait_for("its command", lambda: "Cmd:" in (site.logs / "control.log").read_text())
        with pytest.raises(CommandDroppedError):
            asyncio.run(commands.ask(site.pipes, Command("quit"), None, greeted_within=0.5))
    assert site.run("-q").returncode == 0


@pytest.mark.parametrize("front", ["ours", "the vendor's"])
def test_a_start_behind_a_quit_is_a_start(site: Site, front: str) -> None:
    """Scripts restart MPS by `echo quit | nvidia-cuda-mps-control; nvidia-cuda-mps-control -d`."""
    program = site.program if front == "ours" else site.vendor
    for share in (40, 50, 60):
        assert site.run("-d").returncode == 0
        assert site.run("set_default_active_thread_percentage", str(share)).stdout == f"{share}.0\n"
        assert site.run(program=program, given="quit\n").returncode == 0
        started = site.run("-d")
        assert (started.stderr, started.returncode) == ("", 0)
        assert site.run(given=QUERY).stdout == "100.0\n"
        assert site.run("-q").returncode == 0


def test_help_and_version_need_no_daemon(site: Site) -> None:
    for option in ("-h", "--help"):
        theirs, ours = site.run(option, program=site.vendor), site.run(option)
        assert (theirs.returncode, theirs.stderr) == (ours.returncode, ours.stderr) == (0, "")
        assert theirs.stdout
        assert ours.stdout
    for option in ("-v", "--version"):
        told = site.run(option)
        assert (told.returncode, told.stdout.split()[:1]) == (0, ["mpsguard"])


def test_a_command_follows_the_daemon_whatever_protocol_is_wanted(site: Site) -> None:
    """As the vendor's program of 615 does (MPS manual, MPS v3 interface)."""
    assert site.run("-d").returncode == 0
    wanted = {"CUDA_MPS_PROTOCOL_VERSION": "3"}
    assert site.run(QUERY, variables=wanted).stdout == "100.0\n"
    assert site.run(program=site.vendor, given=QUERY, variables=wanted).stdout == "100.0\n"
    assert site.run("-p", "3", QUERY).returncode == 3
