"""What public reports and scripts do to sockets and directories of daemons, done to a guard's."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from mpsguard.linux.sockets.listens import listens
from tests.harness.stopped import stopped
from tests.harness.waiting import wait_for
from tests.integration.ctl_in_process import done_by
from tests.integration.guarded import SIMULATED, Guarded
from tests.integration.own_paths import mounts
from tests.integration.own_paths.shared import SharedGuards

pytestmark = pytest.mark.slow(seconds=60, reason="a guard for each report")

IS_ROOT = os.geteuid() == 0
PURPOSES = ("ready", "slurm", "npd")


@dataclass(frozen=True)
class Report:
    """What a report or a script in a repository does.

    Args:
        source: Where it is.
        script: The same in shell, with $MPS, the public directory, $LOG, a lane's logs, $ALL, all that the guard has.
        is_told: Whether the guard may not mend it.
        stopped: Whether the guard is stopped meanwhile: a later step of the script fails, or does something else, if
            the guard has mended what an earlier one did.
        mounts: Whether it mounts.
    """

    source: str
    script: str
    is_told: bool = False
    stopped: bool = False
    mounts: bool = False


REPORTS = (
    Report("systemd/systemd#2479: a cleaner of temporary files", "rm $MPS/control"),
    Report(
        "systemd/systemd#20635: a socket that was renamed is taken for a dead one", "mv $MPS/control $MPS/b; rm $MPS/b"
    ),
    Report(
        "systemd/systemd#32678: a socket that stays behind, dead", "rm $MPS/control; $DEAD $MPS/control", stopped=True
    ),
    Report("claritylab/djinn dnn/clean_mps.sh", "rm -fr $MPS; rm -fr $LOG", stopped=True),
    Report(
        "zejia-lin/BulletServe scripts/misc/start_mps.sh",
        "rm -rf $MPS; mkdir -p $MPS; chmod 777 $LOG",
        stopped=True,
    ),
    Report(
        "the same script, with the daemon that it starts then",
        "rm -rf $MPS; mkdir -p $MPS; CUDA_MPS_PIPE_DIRECTORY=$MPS CUDA_MPS_LOG_DIRECTORY=$MPS $STOCK -d",
        is_told=True,
        stopped=True,
    ),
    Report(
        "bottlerocket-os/bottlerocket-kernel-kit#415: the directory above is 0700", "chmod 0700 $MPS/..", is_told=True
    ),
    Report("Mellanox/k8s-rdma-shared-dev-plugin#79: the kubelet removes all sockets of plugins", "rm $MPS/control*"),
    Report("v2fly/v2ray-core#2007: socket and lock vanish", "rm $MPS/control $MPS/control_lock"),
    Report(
        "moby/moby#30348, #15912: a bind mount makes a directory of a socket",
        "rm $MPS/control; mkdir $MPS/control",
        is_told=True,
        stopped=True,
    ),
    Report(
        "Growth-Circle/cadis#34: a file at the socket's path is to stay",
        "rm $MPS/control; echo x >$MPS/control",
        is_told=True,
        stopped=True,
    ),
    Report(
        "benoitc/gunicorn#2053: a restart makes the directory anew", "rm -rf $MPS; mkdir -m 0755 $MPS", stopped=True
    ),
    Report("IntersectMBO/cardano-node#1023, go-gitea/gitea#20490: a socket is unlinked", "unlink $MPS/control"),
    Report("scyto/ha-bluetooth-audio-manager#193: 777 for want of an owner", "chmod 777 $MPS"),
    Report(
        "mariadb-corporation/mariadb-columnstore-engine#136: chmod -R and rm -fr in /tmp",
        "chmod -R 755 $ALL; rm -fr $ALL",
        stopped=True,
    ),
    Report(
        "rapid7/guardian#11, rackerlabs/repose#1271: logrotate moves the log",
        "mv $LOG/server.log $LOG/server.log.1; touch $LOG/server.log",
    ),
    Report("davmac314/dinit#17, #148: tmpfs over the directory", "mount -t tmpfs -o mode=0755 tmpfs $MPS", mounts=True),
    Report(
        "DaemonEngine/Daemon#1392: errors=remount-ro",
        "rm -rf $MPS/*; mount --bind $MPS $MPS; mount -o remount,bind,ro $MPS",
        is_told=True,
        stopped=True,
        mounts=True,
    ),
)

DEAD = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind(sys.argv[1])"


def happens(report: Report, guarded: Guarded) -> None:
    everything = [guarded.public, guarded.run_directory, guarded.root / "state", guarded.root / "log"]
    environment = {
        **os.environ,
        "MPS": str(guarded.public),
        "LOG": str(guarded.log),
        "ALL": " ".join(map(str, everything)),
        "STOCK": str(SIMULATED),
    }
    script = report.script.replace("$DEAD", f"python3 -c {shlex.quote(DEAD)}")
    with stopped(guarded.guard.pid) if report.stopped else nullcontext():
        subprocess.run(["sh", "-ec", script], env=environment, check=True, timeout=30, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(each, id=each.source, marks=[pytest.mark.root] if each.mounts else [])
        for each in REPORTS
        if IS_ROOT or not each.mounts
    ],
)
@pytest.mark.parametrize("held", [False, True], ids=["own", "held"])
def test_no_program_runs_without_mps_while_the_guard_says_that_all_is_well(
    guards: SharedGuards, report: Report, held: bool
) -> None:
    def start(guarded: Guarded) -> None:
        if held:
            guarded.hold_sockets()
        guarded.start()

    def body() -> None:
        # One that has mended its paths is the next report's; after others nothing puts them right.
        alone = report.is_told or report.mounts
        with Guarded() if alone else guards.of(held, start) as guarded:
            if alone:
                start(guarded)
            happens(report, guarded)
            wait_for("the outcome", lambda: settled(guarded, is_told=report.is_told))
            if report.is_told:
                asked = [done_by(str(guarded.run_directory), "check", "--for", each) for each in PURPOSES]
                assert [done.returncode for done in asked] == [1, 1, 1]
            else:
                assert guarded.client("--seconds", "0.1").expect("connected", "bare")["mps"]

    if report.mounts:
        mounts.in_own_namespace(body)
    else:
        body()


def settled(guarded: Guarded, *, is_told: bool) -> bool:
    """Whether the guard has seen it: what was mended is so, or what cannot be is said."""
    try:
        status = guarded.asked("status")
    except OSError:
        return False
    if is_told:
        return any("without MPS" in each for each in status["problems"])
    return status["health"] == "healthy" and listens(guarded.public / "control")
