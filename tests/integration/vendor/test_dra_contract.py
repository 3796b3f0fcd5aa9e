"""The DRA driver's MPS pod: the vendor's daemon behind a guard, in a mount namespace with a root of its own.

SIMULATION of the pod, as there is no kubelet here: the mounts, the environment and the commands are those of the
driver's template, in our own words.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.waiting import wait_for
from tests.integration.vendor.pod import Pod
from tests.integration.vendor.site import Site, newest

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mount namespaces"),
]

BUDGET = 4.0
"""Seconds from the container's start to the startup log: the probe's first delay and its three attempts, one second
each."""

CONTAINER = """
run() { chroot $root sh -c "$1"; }
run "nvidia-cuda-mps-control -d"
run "echo set_default_active_thread_percentage 25 | nvidia-cuda-mps-control" >/dev/null
run "echo set_default_device_pinned_mem_limit 0 2G | nvidia-cuda-mps-control"
echo "startup complete" >$root/var/log/nvidia-mps/startup.log
exec tail -n +1 -f $root/var/log/nvidia-mps/control.log
"""


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(newest()) as there:
        yield there


@pytest.mark.slow(seconds=3, reason="starts a guard in a pod")
def test_the_pod_starts_and_serves(site: Site) -> None:
    _start_and_serve(site, site.root / "claim")


@pytest.mark.soak
def test_the_pod_starts_within_the_probes_budget(site: Site) -> None:
    """What the machine does besides is no property of the program: it has the budget of an idle machine."""
    before = _slowdown()
    taken = _start_and_serve(site, site.root / "claim")
    assert taken < BUDGET * max(before, _slowdown())


def _slowdown() -> float:
    """How many times longer than on an idle machine a start takes now: wall time through processor time."""
    begun = time.monotonic()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "import mpsguard.cli.serve"], os.environ)
    usage = os.wait4(pid, 0)[2]
    return max(1.0, (time.monotonic() - begun) / (usage.ru_utime + usage.ru_stime))


def _start_and_serve(site: Site, claim: Path) -> float:
    """Run one pod; return the seconds that its start took."""
    pipes, logs = claim / "pipes", claim / "logs"
    for directory in (pipes, logs):
        directory.mkdir(parents=True)
    mounts = {"/tmp/nvidia-mps": pipes, "/var/log/nvidia-mps": logs}
    begun = time.monotonic()
    with Pod(site, claim / "pod", mounts, CONTAINER, {"CUDA_VISIBLE_DEVICES": "0"}, host_pid=True) as pod:
        wait_for("the startup log", lambda: (logs / "startup.log").exists() or not pod.runs())
        taken = time.monotonic() - begun
        assert pod.runs(), pod.output()
        # The container lives as long as it can read the log.
        assert pod.process.stdout is not None
        assert "Control" in pod.process.stdout.readline()
        assert 'gpus = [\n    "0",\n]' in (pipes / ".mpsguard" / "mpsguard.toml").read_text()
        # Clients of other pods have the directory under another path, as CDI mounts it.
        for program in (site.program, site.vendor):
            asked = site.run(program=program, given="get_default_active_thread_percentage", pipes=pipes)
            assert asked.stdout == "25.0\n"
        assert site.run("get_default_device_pinned_mem_limit", "0", pipes=pipes).stdout == "2G\n"
        assert site.run("quit", pipes=pipes).returncode == 0
    return taken
