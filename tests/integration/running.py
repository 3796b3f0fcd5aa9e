"""`mpsguard run` as a real process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.harness.whole_lines import whole_lines
from tests.integration.guarded import Program

PYTHON = [sys.executable, "-c"]
SIMULATED_CLIENT = [sys.executable, "-m", "fault_injection.sim.client"]
STUBBORN = """
import json, os, signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
os.write(1, (json.dumps({"event": "ready", "pid": os.getpid()}) + "\\n").encode())
time.sleep(600)
"""
"""Heeds nothing but SIGKILL. Several may say so at once: a line is one write."""

OBEDIENT = """
import json, os, signal, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.write(1, (json.dumps({"event": "ready", "pid": os.getpid()}) + "\\n").encode())
time.sleep(600)
"""

TELLS_OF = """
trap 'echo "{{\\"event\\": \\"{number}\\"}}"; {then}' {number}
echo '{{"event": "up"}}'
while :; do sleep 0.05; done
"""
"""A shell script, to be formatted, that tells of a signal."""

NOWHERE = ("--run-directory", "/nonexistent/mpsguard", "--pipe-directory", "/nonexistent/mps")
"""Options for where there is no guard."""


class Running(Program):
    """`mpsguard run`; what the program prints is read as a program's, what `mpsguard run` says stands in a file."""

    def __init__(
        self, root: Path, options: tuple[str, ...], command: list[str], environment: Mapping[str, str]
    ) -> None:
        self._errors = root / f"run-{os.urandom(4).hex()}.err"
        run = [sys.executable, "-m", "mpsguard.cli.guard", "run", *options, "--", *command]
        super().__init__(["sh", "-c", 'exec "$@" 2>"$0"', str(self._errors), *run], environment)

    def said(self) -> list[str]:
        """What it told its user so far."""
        return [line for line in whole_lines(self._errors) if line.startswith("mpsguard run: ")]
