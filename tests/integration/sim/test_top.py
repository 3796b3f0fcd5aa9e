"""`mpsguard-ctl top` before a guard with simulated clients: its screen as text, and its keys."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest
from textual.pilot import Pilot

from mpsguard.cli.dashboard.app import Dashboard
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import PATIENCE
from tests.integration.guarded import Guarded, Program

pytestmark = pytest.mark.slow(seconds=30, reason="starts guards and clients")

NARROW: Final = (80, 24)
WIDE: Final = (200, 40)
HEEDLESS: Final = [sys.executable, "-m", "tests.integration.sim.heedless"]
TEXT: Final = "{http://www.w3.org/2000/svg}text"


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running


def screen(pilot: Pilot[None]) -> str:
    """The screen's lines, from the picture that Textual makes of it."""
    lines: dict[int, list[tuple[float, str]]] = {}
    for text in ElementTree.fromstring(pilot.app.export_screenshot()).iter(TEXT):
        line = re.search(r"line-(\d+)", text.get("clip-path") or "")
        if line:
            lines.setdefault(int(line[1]), []).append((float(text.get("x") or 0), text.text or ""))
    joined = ("".join(part for _, part in sorted(parts)) for _, parts in sorted(lines.items()))
    return "\n".join(line.replace("\xa0", " ") for line in joined)


async def until(pilot: Pilot[None], shows: Callable[[str], bool]) -> str:
    due = time.monotonic() + PATIENCE
    while not shows(seen := screen(pilot)):
        assert time.monotonic() < due, seen
        # A picture takes 20 ms of a processor.
        await pilot.pause(0.1)
    return seen


def watch(
    run_directory: Path, script: Callable[[Pilot[None]], Awaitable[None]], size: tuple[int, int] = NARROW
) -> None:
    """Run the screen on that guard, with ``script`` at the keys."""

    async def run() -> None:
        async with Dashboard(str(run_directory), None, 0.1, 5).run_test(size=size) as pilot:
            await script(pilot)

    asyncio.run(run())


def started(guarded: Guarded) -> Program:
    client = guarded.client()
    client.expect("started")
    return client


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["80 columns", "200 columns"])
def test_lanes_clients_and_incidents_are_seen_as_they_come(guarded: Guarded, size: tuple[int, int]) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda seen: "healthy" in seen)
        first, second = started(guarded), started(guarded)
        seen = await until(pilot, lambda seen: str(first.pid) in seen and str(second.pid) in seen)
        assert "ACTIVE" in seen
        assert "python" in seen
        assert max(map(len, seen.splitlines())) <= size[0]
        first.process.kill()
        await until(pilot, lambda seen: f"{first.pid} python" in seen and "proven" in seen)

    watch(guarded.run_directory, script, size)


def test_a_client_is_terminated_only_after_a_yes(guarded: Guarded) -> None:
    victim = guarded.program(HEEDLESS)
    victim.expect("started")
    other = started(guarded)

    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda seen: str(victim.pid) in seen)
        for key in ("n", "escape", "enter"):
            await pilot.press("t")
            await until(pilot, lambda seen: f"client {victim.pid}" in seen)
            await pilot.press(key)
            await until(pilot, lambda seen: "y: yes" not in seen)
        assert not guarded.events("client_terminated")
        await pilot.press("t")
        await pilot.press("y")
        await until(pilot, lambda seen: f"client {victim.pid}: GPU work ended" in seen)

    watch(guarded.run_directory, script)
    assert [event["data"]["pid"] for event in guarded.events("client_terminated")] == [victim.pid]
    assert other.process.poll() is None


def test_the_cursor_stays_on_its_client_when_an_older_one_goes(guarded: Guarded) -> None:
    first, second, third = started(guarded), started(guarded), started(guarded)

    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda seen: str(third.pid) in seen)
        await pilot.press("down")
        first.process.terminate()
        await until(pilot, lambda seen: str(first.pid) not in seen)
        await pilot.press("t")
        await until(pilot, lambda seen: f"client {second.pid}" in seen)
        await pilot.press("n")

    watch(guarded.run_directory, script)


def test_a_guard_that_goes_is_told_of_and_one_that_comes_is_shown(guarded: Guarded) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda seen: "healthy" in seen)
        await asyncio.to_thread(guarded.kill)
        await until(pilot, lambda seen: "no guard" in seen)
        await asyncio.to_thread(guarded.start)
        await until(pilot, lambda seen: "healthy" in seen)

    watch(guarded.run_directory, script)


def test_what_a_client_wrote_is_no_markup(guarded: Guarded) -> None:
    words = "[red]x[/red] [@click=quit]y[/]"
    named = guarded.program(["bash", "-c", 'exec -a "$0" "$@"', words, sys.executable, *HEEDLESS[1:]])
    named.expect("started")

    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda seen: words in seen)

    watch(guarded.run_directory, script, WIDE)


@pytest.mark.parametrize(("options", "code"), [((), 2), (("--json",), 2), (("--interval", "0"), 2)])
def test_where_there_is_no_screen_it_says_so(guarded: Guarded, options: tuple[str, ...], code: int) -> None:
    command = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guarded.run_directory), "top"]
    done = subprocess.run([*command, *options], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert len((done.stderr + done.stdout).strip().splitlines()) <= 4
