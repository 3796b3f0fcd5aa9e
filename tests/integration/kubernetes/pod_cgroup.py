"""Control groups as a kubelet makes them, so that a process is in a pod as far as the kernel can tell."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mpsguard.guard.pods import Pod, PodContainer
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program


def hierarchy() -> Path:
    """Return where cgroup v2 is mounted; skips the test if it is nowhere, or cannot be written to."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, point, kind, *_ in mounts:
        if kind == "cgroup2" and os.access(point, os.W_OK):
            return Path(point)
    pytest.skip("no cgroup v2 hierarchy that can be written to: no process can be put into a pod's control group")


@contextmanager
def pod_cgroup(pod: Pod, container: PodContainer) -> Iterator[Path]:
    """Make the control groups of a pod and one container of it, by the systemd driver's names; remove them after."""
    top = hierarchy()
    slice_ = top / f"kubepods-pod{pod.uid.replace('-', '_')}.slice"
    scope = slice_ / f"cri-containerd-{container.id}.scope"
    try:
        scope.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        yield scope
    finally:
        wait_for("an empty control group", lambda: not (scope / "cgroup.procs").read_text())
        for each in (scope, slice_):
            with suppress(FileNotFoundError):
                each.rmdir()


def client_in(cgroup: Path, guarded: Guarded, *arguments: str) -> Program:
    """Start a simulated CUDA program in a control group."""
    script = f'echo $$ > "{cgroup}/cgroup.procs" && exec "$@"'
    client = [sys.executable, "-m", "fault_injection.sim.client", *arguments]
    return guarded.program(["sh", "-c", script, "sh", *client])
