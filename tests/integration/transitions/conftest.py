"""The stage of all scenes, and the numbers of operations and points at the end of a run."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.integration.transitions.bench import Stage

KINDS: Final = ("cancellations", "failures")
"""Properties of tests: how many points of an operation were covered."""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Processes for the members of sessions."""
    made = Stage()
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was covered."""
    for kind in KINDS:
        found = [
            int(str(value))
            for report in terminalreporter.stats.get("passed", [])
            for name, value in getattr(report, "user_properties", [])
            if name == kind and getattr(report, "when", None) == "call"
        ]
        if found:
            terminalreporter.write_line(f"transitions: {len(found)} operations, {sum(found)} {kind}")
