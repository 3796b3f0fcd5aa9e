"""mpsguard installed on a machine under a real systemd, over a simulated MPS control daemon, and what to do with it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.harness.waiting import PATIENCE
from tests.integration.systemd.booted import BootedSystemd

REPOSITORY: Final = Path(__file__).resolve().parents[3]
SERVICE: Final = "mpsguard.service"
SOCKETS: Final = ("mpsguard.socket", "mpsguard-privileged.socket")
PIPE_DIRECTORY: Final = Path("/run/nvidia-mps")
CONFIGURATION: Final = Path("/etc/mpsguard/mpsguard.toml")

SIMULATED: Final = REPOSITORY / "fault_injection" / "sim" / "bin" / "nvidia-cuda-mps-control"
_CONNECTING: Final = "02"
"""State in /proc/net/unix of a connection that is not accepted yet (SS_CONNECTING)."""


def domain(name: str, directory: Path, gpu: int = 0) -> str:
    """A domain of that name in the configuration, on a simulated control daemon and a GPU of its own."""
    where = f'pipe_directory = "{directory}"\ncontrol_binary = "{SIMULATED}"\nsimulated = true\ngpus = ["{gpu}"]\n'
    return f'[[domain]]\nname = "{name}"\n{where}'


CONFIGURED: Final = '[guard]\ngroup = "mpsguard"\nlog_level = "debug"\n' + domain("default", PIPE_DIRECTORY)


class InstalledGuard:
    """The guard as systemd and an administrator see it. It has no state of its own but the drop-ins it wrote."""

    def __init__(self, machine: BootedSystemd) -> None:
        self.machine = machine

    def forget_the_hosts_own(self) -> None:
        """Start without what an mpsguard on this very host has left for the machine to see."""
        for path in ("/etc/mpsguard", "/var/lib/mpsguard", "/var/log/mpsguard"):
            self.machine.run("rm", "-rf", path)

    def is_installed(self) -> bool:
        """Whether systemd knows the service."""
        return self.machine.property(SERVICE, "LoadState") == "loaded"

    def open_to_every_user(self, *paths: Path) -> None:
        """Let every user come through to ``paths``: a checkout may lie in a home directory."""
        for directory in {above for path in paths for above in (path, *path.parents)}:
            self.machine.run("chmod", "a+x", directory)

    def install(self, *options: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run scripts/install with this interpreter's own environment, so that nothing is downloaded."""
        script = REPOSITORY / "scripts" / "install"
        return self.machine.run(script, "--venv", sys.prefix, *options, deadline=120, check=check)

    def pid(self) -> int:
        """The guard's pid, 0 if there is none."""
        return int(self.machine.property(SERVICE, "MainPID"))

    def restarts(self) -> int:
        """How often systemd has restarted the guard by itself."""
        return int(self.machine.property(SERVICE, "NRestarts"))

    def kill(self, signal: str) -> None:
        """Send the guard, and no other process, a signal."""
        self.machine.systemctl("kill", "--kill-whom=main", f"--signal={signal}", SERVICE)

    def wait_for_another(self, old: int) -> int:
        """Wait until a guard other than ``old`` is ready; its pid."""

        def ready() -> int:
            shown = self.machine.systemctl("show", "--property=MainPID,ActiveState", SERVICE).stdout.splitlines()
            state = dict(line.split("=", 1) for line in shown)
            pid = int(state["MainPID"])
            return pid if pid != old and state["ActiveState"] == "active" else 0

        return self.machine.wait_for(ready, PATIENCE, f"a guard in the place of {old}")

    @contextmanager
    def kept_away(self) -> Iterator[None]:
        """Kill the guard, and have systemd's attempt to start another one wait until the end of the block."""
        hold = "/run/hold"
        self.drop_in("hold", f"[Service]\nExecStartPre=sh -c 'while [ -e {hold} ]; do sleep 0.02; done'\n")
        self.machine.run("touch", hold)
        old = self.pid()
        try:
            self.kill("SIGKILL")
            self.machine.wait_for(lambda: self.pid() == 0, PATIENCE, "the guard's end")
            yield
        finally:
            self.machine.run("rm", hold)
        self.wait_for_another(old)

    def drop_in(self, name: str, text: str) -> None:
        """Change the service's settings as `systemctl edit` would."""
        self.machine.write(f"/etc/systemd/system/{SERVICE}.d/{name}.conf", text)
        self.machine.systemctl("daemon-reload")

    def take_drop_ins_away(self) -> None:
        """Back to the unit as it was installed."""
        self.machine.run("rm", "-rf", f"/etc/systemd/system/{SERVICE}.d")
        self.machine.systemctl("daemon-reload")

    def ctl(self, *arguments: str) -> tuple[int, Any]:
        """Exit status of `mpsguard-ctl` and the document it prints (None if it prints none)."""
        done = self.machine.run("mpsguard-ctl", "--json", *arguments, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout else None

    def status(self) -> dict[str, Any]:
        """`mpsguard-ctl status` of a guard that must be healthy."""
        code, document = self.ctl("status")
        assert code == 0, document
        assert isinstance(document, dict)
        return document

    def lane(self) -> dict[str, Any]:
        """The control daemon's process (pid and start time) on the default domain's lane."""
        lane: dict[str, Any] = self.status()["domains"][0]["lane"]
        assert lane["state"] == "ACTIVE", lane
        return {"control": lane["control"], "servers": [server["process"] for server in lane["servers"]]}

    def clients(self) -> set[int]:
        """Pids of the clients that the guard knows."""
        code, document = self.ctl("clients")
        assert code == 0
        return {client["process"]["pid"] for client in document["clients"]}

    def knows(self, *pids: int) -> None:
        """Wait until the guard lists these clients and no other: a client may be connected a moment before that."""
        self.machine.wait_for(lambda: self.clients() == set(pids), PATIENCE, f"clients {pids}")

    def waiting(self, directory: Path = PIPE_DIRECTORY) -> int:
        """Return how many connections to a public socket the kernel holds because they are not accepted yet."""
        table = self.machine.run("cat", "/proc/net/unix").stdout.splitlines()
        ours = [line.split() for line in table if line.endswith(f" {directory}/control")]
        return sum(1 for entry in ours if entry[5] == _CONNECTING)

    def uninstall(self) -> None:
        """Take mpsguard away with all it started; for the end of a test."""
        self.machine.run(REPOSITORY / "scripts" / "install", "--uninstall", deadline=120)


class Client:
    """A simulated CUDA process as a unit of its own: its output is in the journal, its end in the unit's state."""

    _count = 0

    def __init__(self, machine: BootedSystemd, *, uid: int = 0, directory: Path = PIPE_DIRECTORY) -> None:
        Client._count += 1
        self._machine = machine
        self.unit = f"client-{Client._count}.service"
        machine.run(
            "systemd-run",
            "--quiet",
            f"--unit={self.unit}",
            "--remain-after-exit",
            f"--property=WorkingDirectory={REPOSITORY}",
            f"--uid={uid}",
            f"--setenv=CUDA_MPS_PIPE_DIRECTORY={directory}",
            "--",
            sys.executable,
            "-m",
            "fault_injection.sim.client",
            "--step-ms=5",
        )

    def pid(self) -> int:
        """Its pid, 0 once it has ended."""
        return int(self._machine.property(self.unit, "MainPID"))

    def events(self) -> list[str]:
        """What it has told so far, such as ``connected`` and ``started``."""
        lines = self._machine.journal(self.unit).splitlines()
        return [json.loads(line)["event"] for line in lines if line.startswith("{")]

    def wait_for(self, event: str) -> None:
        """Wait until it tells ``event``; fails as soon as it cannot any more."""

        told: list[str] = []

        def told_or_ended() -> bool:
            # In this order: what it told before it ended counts.
            ended = self.pid() == 0
            told[:] = self.events()
            return event in told or ended

        self._machine.wait_for(told_or_ended, PATIENCE, f"{event} from {self.unit}")
        assert event in told, self._machine.journal(self.unit)

    def end(self) -> None:
        """End it in order, and see that nothing went wrong in its life."""
        pid = self.pid()
        assert pid != 0, self._machine.journal(self.unit)
        self._machine.run("kill", str(pid))
        self.wait_for("finished")
        self._machine.wait_for(lambda: self.pid() == 0, PATIENCE, f"the end of {self.unit}")
        assert self._machine.property(self.unit, "ExecMainStatus") == "0"
