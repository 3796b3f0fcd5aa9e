"""A vault, a supervisor, and what they run: started once, and hit by one schedule after the other."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from fault_injection.holders import holders
from fault_injection.takeover import clients, traps
from fault_injection.takeover.clients import UnfaithfulError
from fault_injection.takeover.schedule import Kill, Schedule
from fault_injection.takeover.server import GATED_VARIABLE
from fault_injection.takeover.traps import Point, Traps
from mpsguard.linux.systemd import handover
from mpsguard.linux.systemd.handover import Handover

DEADLINE: Final = 60.0
"""Seconds that a run may take; none takes near that long."""
_SERVER: Final = ("-m", "fault_injection.takeover.server")
_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_BOTH: Final = 2
_STEADY: Final = 100
"""Looks that must show the same."""


class World:
    """Owns the processes and their directory; `close` ends them all."""

    def __init__(self, *, family: socket.AddressFamily = socket.AF_INET, gated: bool = False) -> None:
        """``gated``: the program's processes use their connections inside a gate alone."""
        # Short: a socket's path has at most 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="mgt-"))
        self._run_directory = self.root / "run"
        self.traps = Traps(self.root / "traps")
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in ("NOTIFY_SOCKET", "MPSGUARD_VAULT")},
            "MPSGUARD_VAULT_SIMULATED": "1",
            "PYTHONPATH": str(_REPOSITORY),
            traps.VARIABLE: str(self.root / "traps"),
            **({GATED_VARIABLE: "1"} if gated else {}),
        }
        self._log = (self.root / "log").open("wb")
        self._listener = socket.create_server(
            ("::1" if family is socket.AF_INET6 else "127.0.0.1", 0), family=family, backlog=128
        )
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._vault: subprocess.Popen[bytes] | None = None
        self.supervisor: int | None = None
        self._at_rest: tuple[int, int] | None = None

    def start(self) -> None:
        """Start everything, and wait until it serves and a standby is ready."""
        self._start_vault()
        command = [sys.executable, "-m", "mpsguard.cli.guard", "run", "--run-directory", str(self._run_directory)]
        command += ["--pipe-directory", str(self.root / "mps"), "--standby", "1", "--give-up", "20", "--settle", "0"]
        # The supervisor writes where we do, but for what it says.
        program = [sys.executable, *_SERVER]
        redirected = ["sh", "-c", 'exec "$@" 2>>"$0"', str(self.root / "log"), *command, "--", *program]
        self.supervisor = handover.start(
            redirected, self._environment, Handover({self._listener.fileno(): "tokens"}, {}), own_group=True
        )
        if not _wait(lambda: self.traps.reached(Point.MAPPED) >= _BOTH):
            raise UnfaithfulError(f"it does not start\n{self.log()[-2000:]}")
        self._at_rest = self._rest(None)

    def run(self, schedule: Schedule, *, all_hit: bool = False) -> list[str]:
        """One run; which of its faults came in time. UnfaithfulError if a client notices, or anything is left.

        With ``all_hit`` it is not over before every trap has gone off.
        """
        self.traps.set(schedule.traps)
        begun = time.monotonic()
        kills = list(schedule.kills)
        vault_dies = schedule.vault_killed_after

        def meanwhile() -> None:
            nonlocal vault_dies
            passed = time.monotonic() - begun
            if kills and kills[0].after <= passed:
                self._kill(kills.pop(0))
            if vault_dies is not None and vault_dies <= passed:
                vault_dies = None
                self.restart_vault()

        clients.ask(self.address, schedule.clients, DEADLINE, meanwhile)
        if all_hit and not _wait(lambda: self.traps.gone_off() == len(schedule.traps)):
            raise UnfaithfulError(f"{self.traps.gone_off()} of {schedule.traps} have gone off")
        hit = [f"{trap.effect.name} {trap.point.name}" for trap in schedule.traps[: self.traps.gone_off()]]
        hit += ["KILL at a random moment"] * (len(schedule.kills) - len(kills))
        hit += ["KILL of the vault"] * (vault_dies != schedule.vault_killed_after)
        hit += ["poison"] * sum(asks.request.poison >= 0 for asks in schedule.clients)
        self.traps.set(())
        self._rest(self._at_rest)
        return hit

    def restart_vault(self) -> None:
        """SIGKILL, and another one at once, as a service manager would."""
        assert self._vault is not None
        self._vault.kill()
        self._vault.wait()
        self._start_vault()

    def processes(self) -> list[int]:
        """Pids of the program's processes."""
        children = Path(f"/proc/{self.supervisor}/task/{self.supervisor}/children").read_text()
        return [int(word) for word in children.split()]

    def log(self) -> str:
        """What the processes have said."""
        return (self.root / "log").read_text(errors="replace")

    def stop(self) -> int:
        """End the program as a user does; its exit status as `os.waitstatus_to_exitcode` has it."""
        assert self.supervisor is not None
        pid, self.supervisor = self.supervisor, None
        os.kill(pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        """End everything that is left."""
        if self.supervisor is not None:
            left = self.processes()
            for pid in (self.supervisor, *left):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(self.supervisor, 0)
        if self._vault is not None:
            self._vault.kill()
            self._vault.wait()
        for pid in holders(self._run_directory):
            os.kill(pid, signal.SIGKILL)
        self._listener.close()
        self._log.close()
        self.traps.close()
        shutil.rmtree(self.root)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_vault(self) -> None:
        self._vault = subprocess.Popen(
            [sys.executable, "-m", "mpsguard.guard.daemon.vault_service", str(self._run_directory)],
            env=self._environment,
            cwd=_REPOSITORY,
            stderr=self._log,
        )

    def _kill(self, kill: Kill) -> None:
        there = self.processes()
        if there:
            try:
                os.kill(there[kill.which % len(there)], signal.SIGKILL)
            except ProcessLookupError:
                return

    def _rest(self, before: tuple[int, int] | None) -> tuple[int, int]:
        """Wait until two processes are there and nothing goes on; the descriptors of supervisor and vault then.

        They must be no more than ``before``; fewer, while a process has not yet come back to a vault that was killed.
        """
        steady, seen = 0, (0, 0)

        def at_rest() -> bool:
            nonlocal steady, seen
            now = self._descriptors()
            steady = steady + 1 if now == seen and len(self.processes()) == _BOTH else 0
            seen = now
            if before is None:
                return steady > _STEADY
            return steady > 1 and seen[0] <= before[0] and seen[1] <= before[1]

        if not _wait(at_rest):
            raise UnfaithfulError(
                f"descriptors of supervisor and vault: {seen}, before: {before}\n{self.log()[-2000:]}"
            )
        return seen

    def _descriptors(self) -> tuple[int, int]:
        assert self._vault is not None
        return _descriptors(self.supervisor), _descriptors(self._vault.pid)


def _descriptors(pid: int | None) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        return 0


def _wait(look: Callable[[], bool]) -> bool:
    due = time.monotonic() + DEADLINE
    while not look():
        if time.monotonic() > due:
            return False
        time.sleep(0.003)
    return True
