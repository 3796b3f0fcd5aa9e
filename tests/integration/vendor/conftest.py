"""The vendor's daemon as a fixture: every test that takes `vendor_mps` runs once for each branch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import vendor


@pytest.fixture(params=vendor.BRANCHES)
def vendor_mps(request: pytest.FixtureRequest) -> vendor.VendorMps:
    """Return one branch of the vendor's daemon, or skip and say why it is not on this machine."""
    found = vendor.find(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def pipe_directory() -> Iterator[Path]:
    """Return an empty directory with a short name: a socket's path may not be longer than 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="mps-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how much of the simulation was compared with the vendor's daemons."""
    found = [
        int(str(value))
        for report in terminalreporter.stats.get("passed", [])
        for name, value in getattr(report, "user_properties", [])
        if name == "compared" and getattr(report, "when", None) == "call"
    ]
    if found:
        terminalreporter.write_line(f"simulation and vendor's daemons: {sum(found)} commands compared, 0 differences")
