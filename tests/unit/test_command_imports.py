"""A command costs what it needs: probes ask every few seconds, and `mpsguard run` lives as long as its program."""

import subprocess
import sys

import pytest

from mpsguard.cli import ctl, guard

GUARD = {"mpsguard.daemon.guard", "mpsguard.daemon.domain", "mpsguard.sensors", "prometheus_client", "sqlite3"}
"""The guard, and what it alone needs."""
REPORT = {"mpsguard.report", "mpsguard.triage"}
DRAWS = {"incident", "incidents"}
"""Commands that show incidents as a report does."""
SENSORS = {"doctor"}
"""Looks itself whether the kernel module is there."""
PROGRAM = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules, sep='\\n')"


def loaded(module: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, module], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", ctl.COMMANDS)
def test_no_command_loads_the_guard(name: str) -> None:
    wanted = (REPORT if name in DRAWS else set()) | ({"mpsguard.sensors"} if name in SENSORS else set())
    assert not loaded(ctl.COMMANDS[name]) & (GUARD | REPORT) - wanted


def test_who_supervises_a_program_does_not_load_the_guard() -> None:
    assert not loaded(guard.COMMANDS["run"]) & (GUARD | REPORT)
