"""Runs `mpsguard-ctl`, to show its output or to read its JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.core.errors import SuiteError
from tests.harness.guard_process import REPOSITORY

_DEADLINE: Final = 30.0


@dataclass(frozen=True)
class Printed:
    """A command's output and exit status."""

    text: str
    exit_status: int


@dataclass(frozen=True)
class Ctl:
    """`mpsguard-ctl` for the guard with this run directory."""

    run_directory: Path

    def run(self, *arguments: str) -> Printed:
        """Run it; raise SuiteError after a timeout."""
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path, "MPSGUARD_RUN_DIRECTORY": str(self.run_directory)}
        command = [sys.executable, "-m", "mpsguard.cli.ctl", *arguments]
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_DEADLINE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SuiteError(f"mpsguard-ctl {' '.join(arguments)} did not end within {_DEADLINE:g} s") from None
        return Printed(done.stdout, done.returncode)

    def clients(self) -> Mapping[str, Any]:
        """Return what `mpsguard-ctl --json clients` prints; raise SuiteError with the output if that is no JSON."""
        return self._asked("clients")

    def incidents(self) -> Sequence[Mapping[str, Any]]:
        """Return the incidents that `mpsguard-ctl --json incidents` prints, newest first; raise SuiteError likewise."""
        found: Sequence[Mapping[str, Any]] = self._asked("incidents")["incidents"]
        return found

    def _asked(self, command: str) -> Mapping[str, Any]:
        printed = self.run("--json", command)
        try:
            found: Mapping[str, Any] = json.loads(printed.text)
        except ValueError:
            raise SuiteError(f"mpsguard-ctl {command}: {printed.text.strip()}") from None
        return found

    def domain(self) -> Mapping[str, Any]:
        """Return the only domain of `mpsguard-ctl --json status`; raise SuiteError with the output if there is none."""
        printed = self.run("--json", "status")
        try:
            (domain,) = json.loads(printed.text)["domains"]
        except (ValueError, KeyError, TypeError):
            raise SuiteError(f"mpsguard-ctl status: {printed.text.strip()}") from None
        found: Mapping[str, Any] = domain
        return found
