"""The scripts of examples/slurm under Slurm's own daemons, over the simulated MPS stack."""

from __future__ import annotations

import fcntl
import itertools
import os
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.harness.whole_lines import whole_lines
from tests.integration.guarded import Guarded, Program
from tests.integration.running import SIMULATED_CLIENT
from tests.integration.slurm import cluster
from tests.integration.slurm.cluster import Cluster

ACTION = "GPU recovery action changed"
STAYS = (
    "48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU",
    "63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x1) marked for remapping, reset gpu to activate.",
    "94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No",
    "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
    f"154, {ACTION} from 0x0 (None) to 0x4 (Drain and Reset)",
)
"""Lines after which a node goes on."""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(cluster.missing() is not None, reason=str(cluster.missing())),
    pytest.mark.slow(seconds=12, reason="runs a cluster"),
]

CTL = """\
#!/bin/sh
# `mpsguard-ctl` of the guard under test; notes each probe that it has answered.
cd {repository} && {python} -m mpsguard.cli.ctl --run-directory {run_directory} --deadline 5 "$@"
status=$?
echo $status >>{probes}
exit $status
"""


class Site:
    """A guard that is degraded, as this machine has no GPU, and a cluster with scripts that ask it."""

    def __init__(self, interval: int) -> None:
        self.guarded = Guarded()
        root = self.guarded.root
        # Not "simulated": so the absence of a driver counts.
        self.guarded.config.write_text(self.guarded.config.read_text().replace("simulated = true\n", "", 1))
        self._kernel_log = root / "kmsg"
        os.mkfifo(self._kernel_log)
        self._writer = os.open(self._kernel_log, os.O_RDWR | os.O_NONBLOCK)
        self.guarded.environment["KERNEL_LOG"] = str(self._kernel_log)
        self._records = itertools.count(1)
        self.guarded.process.module = "tests.integration.slurm.with_kernel_log"
        self._probes = root / "probes"
        ctl = root / "mpsguard-ctl"
        run_directory = self.guarded.run_directory
        ctl.write_text(
            CTL.format(repository=REPOSITORY, python=sys.executable, run_directory=run_directory, probes=self._probes)
        )
        ctl.chmod(0o755)
        (root / "slurm").mkdir()
        settings = {"PIPE_DIRECTORY": str(self.guarded.public), "CTL": str(ctl)}
        self.cluster = Cluster(root / "slurm", settings, interval)

    def __enter__(self) -> Site:
        self.guarded.start()
        self.cluster.__enter__()
        assert self.guarded.ctl("status").returncode == 3
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.__exit__()
        self.guarded.close()
        os.close(self._writer)

    def job(self, share: int, *command: str) -> Program:
        """Start a job with a share of a GPU; its output is read as a program's."""
        # What this process has set would reach the job, too; only what Slurm's scripts set shall.
        variables = ["-u", "CUDA_MPS_PIPE_DIRECTORY", f"SLURM_CONF={self.cluster.conf}", f"PYTHONPATH={REPOSITORY}"]
        job = ["srun", "--quiet", f"--gres=mps:{share}", "--chdir=/", *command]
        errors = str(self.guarded.root / "srun.log")
        return self.guarded.program(["sh", "-c", 'exec "$@" 2>>"$0"', errors, "env", *variables, *job])

    def break_gpu(self, bus: str) -> None:
        """Have a GPU fall off the bus, as the driver would tell it."""
        self.log(f"NVRM: Xid (PCI:0000:{bus}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
        wait_for("the fault", lambda: self.guarded.ctl("check", "--for", "slurm").returncode == 1)

    def log(self, line: str) -> None:
        """Have the kernel print a line; returns when it is read, as several in a FIFO are one to a reader."""
        stamp = int(time.monotonic() * 1e6)
        os.write(self._writer, f"3,{next(self._records)},{stamp},-;{line}\n".encode())
        wait_for("the line to be read", lambda: fcntl.ioctl(self._writer, termios.FIONREAD, bytes(4)) == bytes(4))

    def probes(self) -> int:
        """How many probes the scripts have had answered."""
        return len(whole_lines(self._probes))

    def after_two_probes(self) -> None:
        """Return when two more probes were answered, so that one of them began after this call."""
        before = self.probes()
        wait_for("probes", lambda: self.probes() >= before + 2)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """One without health checks: what happens is the other scripts' doing. The last test drains it."""
    with Site(interval=0) as there:
        yield there


@pytest.fixture
def checked() -> Iterator[Site]:
    with Site(interval=1) as there:
        yield there


TELL = """
import json, os
names = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES")
print(json.dumps({name: os.environ.get(name) for name in names}), flush=True)
os.execv(PROGRAM[0], PROGRAM)
"""
"""A task that says what it was given, and becomes a client."""


def telling(*options: str) -> tuple[str, ...]:
    program = [*SIMULATED_CLIENT, *options]
    return (sys.executable, "-c", f"PROGRAM = {program!r}\n{TELL}")


def test_shares_reach_the_jobs_and_a_job_that_is_cancelled_in_the_middle_of_a_kernel_harms_no_other(
    site: Site,
) -> None:
    innocent, other = site.job(25, *telling()), site.job(50, *telling("--iterations", "3"))
    for job, share in ((innocent, "25"), (other, "50")):
        given = job.next()
        assert given == {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": share,
            "CUDA_MPS_PIPE_DIRECTORY": str(site.guarded.public),
            # Both on one GPU.
            "CUDA_VISIBLE_DEVICES": "0",
        }
        assert job.expect("connected", "bare")["mps"]
    assert other.expect("finished", "died")["event"] == "finished"
    assert other.wait() == 0
    innocent.expect("started")

    # Its last kernel lasts for longer than Slurm waits before it kills (KillWait).
    run = (sys.executable, "-m", "mpsguard.cli.guard", "run", "--config", str(site.guarded.config), "--")
    culprit = site.job(25, *run, *SIMULATED_CLIENT, "--step-ms", "60000")
    culprit.expect("started")
    wait_for("two clients", lambda: len(site.guarded.clients()) == 2)
    (number,) = [job for job in site.cluster.jobs() if job != min(site.cluster.jobs(), key=int)]
    site.cluster.command("scancel", number)
    wait_for("its end", lambda: number not in site.cluster.jobs())
    wait_for("one client", lambda: len(site.guarded.clients()) == 1)
    assert [event["data"]["answer"] for event in site.guarded.events("client_terminated")] == ["0"]
    assert innocent.process.poll() is None
    assert innocent.silent()
    # A job without a share is not sent through MPS, and one without a GPU asks the guard nothing.
    before = site.probes()
    assert site.cluster.command("srun", "--quiet", "sh", "-c", "echo ${CUDA_MPS_PIPE_DIRECTORY-none}") == "none"
    # The epilog's alone.
    wait_for("the epilog", lambda: site.probes() == before + 1)
    wait_for("the end of it", lambda: site.cluster.state() == ("mixed", "none"))
    site.cluster.command("scancel", "--user=root")
    wait_for("the end of all", lambda: site.cluster.state() == ("idle", "none"))


def test_no_job_starts_where_there_is_a_fault(site: Site) -> None:
    site.break_gpu("18")
    job = site.job(25, *telling())
    wait_for("the drain", lambda: site.cluster.state()[0].startswith("drain"))
    assert site.cluster.state()[1].startswith("mpsguard: device fault")
    with pytest.raises(EOFError):
        job.next()
    assert not site.guarded.clients()


def test_what_was_drained_here_is_resumed_and_nothing_else(checked: Site) -> None:
    slurm = checked.cluster
    # Degraded all the time, and never drained for it.
    checked.after_two_probes()
    assert slurm.state() == ("idle", "none")
    for words in STAYS:
        checked.log(f"NVRM: Xid (PCI:0000:18:00): {words}")
    # The last of these lines is a part of an incident, or of none; the others are before it.
    wait_for("the incident", lambda: any(94 in each["xids"] for each in checked.guarded.json("incidents")["incidents"]))
    checked.after_two_probes()
    assert slurm.state() == ("idle", "none")

    checked.log(f"NVRM: Xid (PCI:0000:18:00): 154, {ACTION} from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)")
    wait_for("the drain", lambda: slurm.state()[0] == "drained")
    checked.log(f"NVRM: Xid (PCI:0000:18:00): 154, {ACTION} from 0x1 (GPU Reset Required) to 0x0 (None)")
    wait_for("the resumption", lambda: slurm.state() == ("idle", "none"))

    checked.break_gpu("18")
    wait_for("the drain", lambda: slurm.state()[0] == "drained")
    assert slurm.state()[1].startswith("mpsguard: device fault of GPU 0000:18:00: Xid 79")
    assert checked.guarded.ctl("repaired").returncode == 0
    wait_for("the resumption", lambda: slurm.state() == ("idle", "none"))

    slurm.command("scontrol", "update", f"nodename={cluster.NODE}", "state=drain", "reason=a fan: mpsguard: no")
    checked.break_gpu("3b")
    checked.after_two_probes()
    assert checked.guarded.ctl("repaired").returncode == 0
    checked.after_two_probes()
    assert slurm.state() == ("drained", "a fan: mpsguard: no")
    slurm.command("scontrol", "update", f"nodename={cluster.NODE}", "state=resume")

    # A guard that does not answer is a fault; systemd would have started it again.
    checked.guarded.kill()
    wait_for("the drain", lambda: slurm.state()[0] == "drained", deadline=60)
    checked.guarded.start()
    wait_for("the resumption", lambda: slurm.state() == ("idle", "none"), deadline=60)
