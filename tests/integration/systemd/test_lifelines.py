"""Lifelines in a real systemd's descriptor store, over guards that are killed, restarted and stopped.

The driver is a stand-in (`with_driver`): a client's address space is a descriptor of /dev/full by another name. What is
shown of it is which process holds the open files, and that they are the same ones.
"""

import itertools
import json
import sys
import time
from collections.abc import Iterator

import pytest

from tests.harness.waiting import PATIENCE
from tests.integration.systemd.booted import BootedSystemd
from tests.integration.systemd.installed import (
    CONFIGURATION,
    CONFIGURED,
    PIPE_DIRECTORY,
    REPOSITORY,
    SERVICE,
    InstalledGuard,
)

pytestmark = [pytest.mark.systemd, pytest.mark.root, pytest.mark.slow(seconds=50, reason="boots systemd")]

DEVICE = "/dev/nvidia-uvm"
BOTH = 2
"""Files of the device that a client has: its address space, and the one that keeps its memory map."""
LONG = 600
SHORT = 20
"""Seconds; for a guard to be killed before they are over."""

GUARD = f"""
[Service]
WorkingDirectory={REPOSITORY}
ExecStart=
ExecStart={sys.executable} -m tests.integration.systemd.with_driver serve
"""

CLIENT = f"""
import os, time
from fault_injection.sim.cuda import CudaProcess
files = [os.open("{DEVICE}", os.O_RDWR), os.open("{DEVICE}", os.O_RDWR | os.O_APPEND)]
cuda = CudaProcess()
cuda.init()
cuda.create_context(1)
print("started", flush=True)
time.sleep(600)
"""

COMPARE = f"""
import os, sys
from pathlib import Path
from mpsguard.linux.descriptors import foreign_fd
def files(pid):
    return foreign_fd.copies_of_device(os.pidfd_open(pid), pid, Path("{DEVICE}")).fds
def distinct(files):
    found = []
    for file in files:
        if not any(foreign_fd.same_file(file, other) for other in found):
            found.append(file)
    return found
one, other = (distinct(files(int(pid))) for pid in sys.argv[1:])
print(len(one), len(other), sum(foreign_fd.same_file(a, b) for a in one for b in other))
"""


_numbers = itertools.count()


class Lifelines:
    """An installed guard with the stand-in, and what systemd and it have of clients that were killed."""

    def __init__(self, guard: InstalledGuard) -> None:
        self.guard = guard
        self.machine: BootedSystemd = guard.machine

    def configure(self, crash_hold: int) -> None:
        self.machine.write(CONFIGURATION, f"{CONFIGURED}[domain.lifelines]\ncrash_hold = {crash_hold}\n")
        self.machine.systemctl("restart", SERVICE)

    def kill_a_client(self) -> int:
        """Start one, see that it is watched, and SIGKILL it; its pid."""
        unit = f"lifeline-client-{next(_numbers)}.service"
        self.machine.run(
            *("systemd-run", "--quiet", f"--unit={unit}", f"--property=WorkingDirectory={REPOSITORY}"),
            *(f"--setenv=CUDA_MPS_PIPE_DIRECTORY={PIPE_DIRECTORY}", "--", sys.executable, "-c", CLIENT),
        )
        pid = int(self.machine.property(unit, "MainPID"))
        self.machine.wait_for(lambda: self.watched(pid), PATIENCE, "the sensor's eye on the client")
        assert self.same_files(pid, self.guard.pid()) == (BOTH, BOTH, BOTH)
        self.machine.run("kill", "-9", str(pid))
        return pid

    def watched(self, pid: int) -> bool:
        _, document = self.guard.ctl("clients")
        return any(watch["pid"] == pid and watch["watched"] for watch in document["watches"])

    def held(self) -> list[dict[str, float]]:
        code, document = self.guard.ctl("lifelines")
        assert code == 0
        held: list[dict[str, float]] = document["lifelines"]
        return held

    def stored(self) -> int:
        return int(self.machine.property(SERVICE, "NFileDescriptorStore"))

    def same_files(self, one: int, other: int) -> tuple[int, ...]:
        """How many open files of the device each process has, and how many both of them have (kcmp(2))."""
        command = f"cd {REPOSITORY} && exec {sys.executable} - {one} {other}"
        return tuple(map(int, self.machine.run("sh", "-c", command, stdin=COMPARE).stdout.split()))

    def released(self) -> list[str]:
        """Why each was let go, so far."""
        lines = self.machine.run("mpsguard-ctl", "--json", "events", "--lines", "1000").stdout.splitlines()
        events = [json.loads(line) for line in lines]
        return [event["data"]["why"] for event in events if event["kind"] == "lifeline_released"]

    def nothing_is_left(self) -> bool:
        return self.stored() == 0 and self.same_files(1, self.guard.pid()) == (0, 0, 0)


@pytest.fixture
def lifelines(guard: InstalledGuard) -> Iterator[Lifelines]:
    machine = guard.machine
    # In a mount namespace of the guard's own it would not be seen: before the guard is started.
    machine.run("sh", "-c", f"[ -e {DEVICE} ] || {{ : >{DEVICE} && mount --bind /dev/full {DEVICE}; }}")
    guard.drop_in("driver", GUARD)
    running = Lifelines(guard)
    running.configure(LONG)
    yield running
    machine.write(CONFIGURATION, CONFIGURED)
    guard.take_drop_ins_away()
    machine.systemctl("stop", SERVICE)


def test_a_lifeline_outlives_sigkill_and_restart_and_is_let_go_by_the_last_guard(lifelines: Lifelines) -> None:
    guard, machine = lifelines.guard, lifelines.machine
    pid = lifelines.kill_a_client()
    [held] = machine.wait_for(lifelines.held, PATIENCE, "the lifeline")
    assert held["pid"] == pid
    machine.wait_for(lambda: lifelines.stored() == BOTH, PATIENCE, "both files in the store")
    # From here on systemd's own descriptors say which files these are.
    assert lifelines.same_files(1, guard.pid()) == (BOTH, BOTH, BOTH)

    def killed() -> None:
        guard.kill("SIGKILL")

    def restarted() -> None:
        machine.systemctl("restart", SERVICE)

    for replaced in (killed, restarted, killed):
        old = guard.pid()
        replaced()
        guard.wait_for_another(old)
        assert lifelines.stored() == BOTH
        assert lifelines.same_files(1, guard.pid()) == (BOTH, BOTH, BOTH)
        [now] = lifelines.held()
        assert (now["pid"], now["start_ticks"]) == (pid, held["start_ticks"])
        assert now["since"] == pytest.approx(held["since"], abs=0.002)
        assert now["until"] == pytest.approx(held["until"], abs=0.002)
    assert guard.ctl("lifelines", "--release", str(pid))[0] == 0
    machine.wait_for(lifelines.nothing_is_left, PATIENCE, "an empty store")
    assert lifelines.held() == []


def test_its_time_goes_on_while_no_guard_runs(lifelines: Lifelines) -> None:
    lifelines.configure(SHORT)
    lifelines.kill_a_client()
    [held] = lifelines.machine.wait_for(lifelines.held, PATIENCE, "the lifeline")
    with lifelines.guard.kept_away():
        assert lifelines.stored() == BOTH
        lifelines.machine.wait_for(lambda: time.monotonic() > held["until"], PATIENCE, "the end of its time")
        assert lifelines.stored() == BOTH
    lifelines.machine.wait_for(lifelines.nothing_is_left, PATIENCE, "an empty store")
    assert lifelines.released() == ["its time is over"]


def test_systemctl_stop_leaves_nothing_behind(lifelines: Lifelines) -> None:
    lifelines.kill_a_client()
    lifelines.machine.wait_for(lambda: lifelines.stored() == BOTH, PATIENCE, "both files in the store")
    lifelines.machine.systemctl("stop", SERVICE)
    assert lifelines.stored() == 0
    assert lifelines.same_files(1, 1) == (0, 0, 0)
