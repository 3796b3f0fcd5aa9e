"""A command costs what it needs: probes ask every few seconds, and `mpsguard run` lives as long as its program."""

import pkgutil
import subprocess
import sys

import pytest

from mpsguard.cli import ctl, guard
from mpsguard.guard.control_api import messages
from tests.imported import modules_after

GUARD = {
    "mpsguard.guard.daemon.guard",
    "mpsguard.guard.daemon.domain",
    "mpsguard.guard.sensors",
    "prometheus_client",
    "sqlite3",
}
"""The guard, and what it alone needs."""
REPORT = {"mpsguard.guard.report", "mpsguard.guard.triage"}
DRAWS = {"incident", "incidents"}
"""Commands that show incidents as a report does."""
SENSORS = {"doctor"}
"""Looks itself whether the kernel module is there."""


@pytest.mark.parametrize("name", ctl.COMMANDS)
def test_no_command_loads_the_guard(name: str) -> None:
    wanted = (REPORT if name in DRAWS else set()) | ({"mpsguard.guard.sensors"} if name in SENSORS else set())
    assert not ((GUARD | REPORT) - wanted) & set(modules_after(ctl.COMMANDS[name]))


@pytest.mark.parametrize("name", sorted(ctl.COMMANDS.keys() - DRAWS - {"image", "snapshot", "top"}))
def test_a_command_that_prints_json_does_not_load_rich(name: str) -> None:
    assert not {"pygments", "rich"} & set(modules_after(ctl.COMMANDS[name]))


@pytest.mark.parametrize("subject", [each.name for each in pkgutil.iter_modules(messages.__path__)])
def test_messages_load_no_event_loop(subject: str) -> None:
    assert "asyncio" not in modules_after(f"{messages.__name__}.{subject}")


def test_the_supervisor_of_a_program_does_not_load_the_guard() -> None:
    assert not (GUARD | REPORT) & set(modules_after(guard.COMMANDS["run"]))


def test_a_guard_loads_nothing_that_draws() -> None:
    """structlog would import rich, which costs a quarter of a guard's start and is used for nothing there."""
    modules = {name.partition(".")[0] for name in modules_after(guard.COMMANDS["serve"])}
    assert "structlog" in modules
    assert not {"colorama", "pygments", "rich", "textual"} & modules


def test_the_collector_is_left_as_it_was_and_has_nothing_of_a_command_to_look_at() -> None:
    program = "import gc; from mpsguard.cli.guard import main; before = gc.get_freeze_count()"
    program += "; main.get_command(None, 'serve'); print(gc.isenabled(), gc.get_freeze_count() - before > 10_000)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "True True\n"
