"""The machine itself: a real systemd as process 1, and nothing of it left on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.systemd.booted import BootedSystemd, BootError, elsewhere, missing, wait_for
from tests.integration.systemd.installed import REPOSITORY

pytestmark = [pytest.mark.systemd, pytest.mark.root, pytest.mark.slow(seconds=10, reason="boots systemd")]

BOOT_AND_WAIT = """
import time
from tests.integration.systemd.booted import BootedSystemd
with BootedSystemd() as machine:
    print(machine._scratch, machine.leader, flush=True)
    time.sleep(1000)
"""


def test_systemd_is_process_1(machine: BootedSystemd) -> None:
    assert machine.run("cat", "/proc/1/comm").stdout == "systemd\n"
    assert machine.systemctl("is-system-running").stdout == "running\n"


def test_checkout_and_interpreter_are_visible(machine: BootedSystemd) -> None:
    machine.run(sys.executable, "-c", f"import msgspec; open({__file__!r})")


def test_commands_report_failure(machine: BootedSystemd) -> None:
    assert machine.run("false", check=False).returncode == 1
    with pytest.raises(AssertionError, match="exit status 1"):
        machine.run("false")
    with pytest.raises(subprocess.TimeoutExpired):
        machine.run("sleep", "60", deadline=0.2)


def test_unit_runs_and_its_output_is_in_the_journal(machine: BootedSystemd) -> None:
    machine.write("/etc/systemd/system/hello.service", "[Service]\nType=oneshot\nExecStart=echo greeting\n")
    machine.systemctl("daemon-reload")
    machine.systemctl("start", "hello.service")
    machine.wait_for(lambda: "greeting" in machine.journal("hello.service").splitlines(), 5, "the unit's output")


def test_what_it_writes_stays_inside(machine: BootedSystemd) -> None:
    path = Path(f"/etc/mpsguard-machine-{os.getpid()}")
    machine.write(path, "inside\n")
    assert machine.run("cat", path).stdout == "inside\n"
    assert not path.exists()


def test_commands_run_at_its_root(machine: BootedSystemd) -> None:
    # Relative names must not lead to this machine's own files either.
    path = Path(f"/mpsguard-machine-{os.getpid()}")
    machine.run("touch", path)
    machine.run("rm", path.name)
    assert machine.run("test", "-e", path, check=False).returncode == 1


def test_kernel_settings_cannot_be_changed(machine: BootedSystemd) -> None:
    assert machine.run("sh", "-c", "echo 1 >/proc/sys/fs/file-max", check=False).returncode != 0


def test_nothing_is_left(machine: BootedSystemd) -> None:
    with BootedSystemd() as second:
        leader, scratch = second.leader, second._scratch
        assert not _mounts(scratch), "its mounts are its own"
        second.run("systemd-run", "--unit=sleeper", "sleep", "1000")
        # A command that outlives its caller must go too.
        with pytest.raises(subprocess.TimeoutExpired):
            second.run("sleep", "1000", deadline=0.2)
    assert not _mounts(scratch)
    assert not scratch.exists()
    assert not Path(f"/proc/{leader}").exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{scratch.name}"))
    assert machine.systemctl("is-system-running").stdout == "running\n"


def test_nothing_is_left_when_its_user_is_killed(machine: BootedSystemd) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BOOT_AND_WAIT], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None
        scratch, leader = user.stdout.readline().split()
        user.kill()
    # The scratch directory is the last to go.
    wait_for(lambda: not Path(scratch).exists(), 20, "the end of the machine")
    assert not Path(f"/proc/{leader}").exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{Path(scratch).name}"))


def test_nothing_is_left_after_a_failed_boot() -> None:
    if reason := missing():
        pytest.skip(reason)
    broken = BootedSystemd(boot_deadline=0.0)
    with pytest.raises(BootError):
        broken.__enter__()
    assert not _mounts(broken._scratch)
    assert not broken._scratch.exists()


def test_paths_on_other_file_systems_are_found() -> None:
    assert elsewhere([Path("/proc"), Path("/")]) == [Path("/proc")]


def test_waiting_ends() -> None:
    assert wait_for(lambda: "answer", 0, "an answer") == "answer"
    with pytest.raises(AssertionError, match=r"not within 0\.1 s: never"):
        wait_for(lambda: "", 0.1, "never")


def _mounts(scratch: Path) -> list[str]:
    """Those of one machine: other tests mount and unmount meanwhile."""
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return [mount for mount in mounts if str(scratch) in mount]
