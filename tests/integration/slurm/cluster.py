"""A cluster of one node: Slurm's own controller and node daemon, with two simulated GPUs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
from pathlib import Path
from typing import Final, Self

from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import PATIENCE, wait_for

SCRIPTS: Final = REPOSITORY / "examples" / "slurm"
NODE: Final = "node"
GPUS: Final = 2
_CONF: Final = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
MailProg=/bin/true
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu,mps
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=nohold_on_prolog_fail
KillWait=5
Prolog={scripts}/prolog
PrologFlags=Alloc
TaskProlog={scripts}/taskprolog
Epilog={scripts}/epilog
HealthCheckProgram={scripts}/healthcheck
HealthCheckInterval={interval}
HealthCheckNodeState=ANY
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8 Gres=gpu:2,mps:200 State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
_GRES: Final = "Name=gpu File={root}/nvidia[0-1]\nName=mps Count=200\n"


def missing() -> str | None:
    """Return why no cluster can be run here, or None."""
    if os.geteuid() != 0:
        return "needs root: Slurm's daemons"
    absent = [name for name in ("slurmctld", "slurmd", "srun") if shutil.which(name) is None]
    return f"{absent[0]} is not installed (scripts/packages-debian.txt)" if absent else None


class Cluster:
    """Owns the daemons.

    Args:
        root: An empty directory.
        settings: What stands in `settings` instead of the example's values.
        interval: Seconds between two health checks; 0: there are none.
    """

    def __init__(self, root: Path, settings: dict[str, str], interval: int) -> None:
        self.root = root
        self._started: list[subprocess.Popen[bytes]] = []
        scripts = root / "scripts"
        for directory in (root / "state", root / "spool"):
            directory.mkdir()
        shutil.copytree(SCRIPTS, scripts)
        self.conf = root / "slurm.conf"
        with (scripts / "settings").open("a") as file:
            file.writelines(f"{name}='{value}'\n" for name, value in {**settings, "SLURM_CONF": self.conf}.items())
        for number in range(GPUS):
            # Slurm wants a device; a file is refused.
            os.mknod(root / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        controller, daemon = _free_ports()
        host = socket.gethostname().partition(".")[0]
        self.conf.write_text(
            _CONF.format(
                root=root,
                scripts=scripts,
                interval=interval,
                node=NODE,
                host=host,
                controller=controller,
                daemon=daemon,
            )
        )
        (root / "gres.conf").write_text(_GRES.format(root=root))
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}

    def __enter__(self) -> Self:
        try:
            for program in (["slurmctld", "-D"], ["slurmd", "-D", "-N", NODE]):
                with (self.root / f"{program[0]}.log").open("wb") as log:
                    self._started.append(
                        subprocess.Popen(
                            program, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
                        )
                    )
            wait_for("the node", lambda: self.state()[0] == "idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.command("scancel", "--user=root", "--signal=KILL", "--full")
        for process in reversed(self._started):
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for entry in Path("/proc").iterdir():
            # The daemons leave the stewards of running steps behind, by design.
            try:
                if entry.name.isdigit() and f"SLURM_CONF={self.conf}".encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue

    def command(self, *words: str) -> str:
        """Run one of Slurm's commands; what it prints."""
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        ).stdout.strip()

    def state(self) -> tuple[str, str]:
        """The node's state in Slurm's words, and the reason for it."""
        said = self.command("sinfo", "--noheader", "--Node", "--format=%T|%E")
        state, _, reason = said.partition("|")
        return state.rstrip("*"), reason

    def jobs(self) -> dict[str, str]:
        """The jobs' states, by number."""
        lines = self.command("squeue", "--noheader", "--format=%i %T").splitlines()
        return {words[0]: words[1] for words in map(str.split, lines)}


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
