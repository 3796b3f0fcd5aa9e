"""Pictures of `mpsguard-ctl top`: narrow, wide, with its question, without a guard; compared with accepted ones.

They were looked at. After a change that is meant: `pytest --snapshot-update` on this file, and look again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable

from mpsguard.cli.dashboard.app import Dashboard
from tests.harness.waiting import PATIENCE
from tests.integration.scripted_guard import scripted_guard
from tests.unit.guard.report.overviews import EXAMPLE

pytestmark = pytest.mark.slow(seconds=5, reason="draws a screen, four times")

NARROW = (80, 24)
WIDE = (140, 24)


class Compare(Protocol):
    """The fixture of pytest-textual-snapshot."""

    def __call__(
        self,
        app: Dashboard,
        *,
        terminal_size: tuple[int, int],
        run_before: Callable[[Pilot[None]], Awaitable[None]],
    ) -> bool: ...


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("run")
    with scripted_guard(str(directory)):
        yield directory


def top(directory: Path) -> Dashboard:
    # One look, and no other one while the picture is taken.
    return Dashboard(str(directory), None, 3600.0, 5.0)


async def filled(pilot: Pilot[None]) -> None:
    due = time.monotonic() + PATIENCE
    while pilot.app.query_one("#clients", DataTable).row_count < len(EXAMPLE.clients):
        assert time.monotonic() < due
        await pilot.pause(0.02)


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
def test_lanes_clients_and_incidents(snap_compare: Compare, guard: Path, size: tuple[int, int]) -> None:
    assert snap_compare(top(guard), terminal_size=size, run_before=filled)


def test_the_question(snap_compare: Compare, guard: Path) -> None:
    async def ask(pilot: Pilot[None]) -> None:
        await filled(pilot)
        await pilot.press("t")

    assert snap_compare(top(guard), terminal_size=NARROW, run_before=ask)


def test_no_guard(snap_compare: Compare) -> None:
    async def look(pilot: Pilot[None]) -> None:
        await pilot.pause()

    # A name that is the same in every run: it stands in the picture.
    assert snap_compare(top(Path("/nonexistent")), terminal_size=NARROW, run_before=look)
