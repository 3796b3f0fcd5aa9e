"""The watch over the guard's own paths: what is told of those that come and go, and of a file system that hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.protocol import Event
from mpsguard.guard.daemon import path_watch
from mpsguard.guard.daemon.path_watch import PathError, PathWatch
from mpsguard.guard.metrics.registry import Metrics
from tests.harness.waiting import until


class Marked:
    """A path that is as it should be as long as `wrong` is empty."""

    path = Path("/run/nvidia-mps")
    is_for_programs = True

    def __init__(self) -> None:
        self.wrong = ""
        self.refused = ""
        self.answers = threading.Event()
        self.answers.set()

    def changed(self) -> str | None:
        self.answers.wait()
        return self.wrong or None

    def keeps_out(self) -> bool:
        return bool(self.wrong)

    def mend(self) -> Callable[[], None]:
        if self.refused:
            raise PathError(self.refused)
        self.wrong = ""
        return lambda: None

    def close(self) -> None:
        pass


@pytest.fixture
def marked() -> Marked:
    return Marked()


async def watched(marked: Marked, look: Callable[[PathWatch, list[str]], object], act: Callable[[], None]) -> list[str]:
    """Act on a watched path, wait until ``look`` is true, and return the kinds of the events."""
    events, told = EventStream(), list[str]()

    def listen(event: Event) -> None:
        told.append(event.kind)

    events.listen(listen)
    watch = PathWatch([marked], events, Metrics())
    task = asyncio.create_task(watch.run())
    try:
        act()
        await until(lambda: look(watch, told))
    finally:
        marked.answers.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return told


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_watch, "_LOOK", 0.0)
    monkeypatch.setattr(path_watch, "_ANSWERS", 30.0)


def test_what_is_mended_is_told_once(marked: Marked) -> None:
    def act() -> None:
        marked.wrong = "is gone"

    told = asyncio.run(watched(marked, lambda watch, told: told and not watch.flaws, act))
    assert told == ["path_mended"]


def test_what_cannot_be_mended_is_told_once_until_it_is_well(marked: Marked) -> None:
    rounds = []

    def act() -> None:
        marked.wrong, marked.refused = "is gone", "not ours"

    def look(watch: PathWatch, told: list[str]) -> bool:
        if watch.flaws:
            (flaw,) = watch.flaws
            assert (flaw.keeps_out, flaw.text) == (True, "is gone; it cannot be mended: not ours")
            rounds.append(flaw)
            if len(rounds) == 5:
                marked.wrong = marked.refused = ""
        return told[-1:] == ["path_mended"]

    assert asyncio.run(watched(marked, look, act)) == ["path_lost", "path_mended"]
    assert len(rounds) >= 5


def test_what_is_removed_in_a_loop_is_told_to_be_so_and_not_logged_each_time(marked: Marked) -> None:
    def act() -> None:
        marked.wrong = "is gone"

    removed = 0

    def look(watch: PathWatch, told: list[str]) -> bool:
        nonlocal removed
        if not marked.wrong:
            removed += 1
            marked.wrong = "is gone"
        return removed > 30 and any("again and again" in flaw.text and flaw.keeps_out for flaw in watch.flaws)

    told = asyncio.run(watched(marked, look, act))
    most, _ = path_watch._OFTEN
    assert told.count("path_mended") <= most
    # Removed again before it is looked at once more, it is lost in other words, too.
    assert 1 <= told.count("path_lost") <= most + 1


def test_a_file_system_that_does_not_answer_is_a_flaw_until_it_does(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_watch, "_ANSWERS", 0.01)
    seen = []

    def look(watch: PathWatch, told: list[str]) -> bool:
        if watch.flaws:
            (flaw,) = watch.flaws
            assert (flaw.text, flaw.keeps_out) == ("is on a file system that does not answer", True)
            seen.append(flaw)
            marked.answers.set()
        return bool(seen) and not watch.flaws and told[-1] == "path_mended"

    asyncio.run(watched(marked, look, marked.answers.clear))
