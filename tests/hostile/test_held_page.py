"""A stranger holds the lock of the page on which programs are asked to move: it could open the page for a while."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from mmap import MAP_PRIVATE, PROT_READ, mmap
from pathlib import Path

import pytest

from mpsguard.guard.broker import move_page
from mpsguard.guard.broker.move_page import MovePage
from mpsguard.linux.files.directory import Directory
from tests.hostile.attacker import UID, attack
from tests.hostile.attacks import HELD_LOCKS
from tests.hostile.stalled_files import StalledFiles
from tests.hostile.test_held_reads import xfs
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=20, reason="attacks a real guard, makes a file system"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here"),
]
__all__ = ["xfs"]

HOLD = f"""
{HELD_LOCKS}
tell("tried", held=held(sys.argv[3]))
signal.pause()
"""
PROMPT = 30.0
"""Seconds; what waits for the lock waits until the stranger's file system ends."""


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded(domain="standby = true\n") as guarded:
        yield guarded


def test_a_page_that_root_has_opened_to_others_is_refused(guarded: Guarded, stalled: StalledFiles) -> None:
    guarded.start()
    page = guarded.public / "second" / move_page.NAME
    page.chmod(0o666)
    attacker = attack(guarded, HOLD, str(stalled.file), str(page), uid=UID)
    assert attacker.expect("tried")["held"] == "held"
    assert stalled.asked.wait(30)
    guarded.guard.terminate()
    assert guarded.guard.wait(PROMPT) == 0
    guarded.start(ready=False)
    assert guarded.guard.wait(PROMPT) == 1
    assert f"{page}: other users may write to it; remove it" in guarded.process.log.read_text()


def within(work: Callable[[], None], stalled: StalledFiles) -> BaseException | None:
    """Return what some work raises; fails if it does not end before the stranger's file system."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            raised.append(None)
        except OSError as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PROMPT)
    ended = not thread.is_alive()
    stalled.close()
    thread.join(30)
    assert ended
    return raised[0]


@pytest.mark.skipif(shutil.which("mkfs.xfs") is None, reason="xfsprogs are needed")
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "shortened"])
def test_on_xfs_a_reader_holds_nothing_up(xfs: Path, stalled: StalledFiles, *, whole: bool) -> None:
    """There a read(2) into memory that never comes keeps the lock, too."""
    with Directory.make(xfs / "second", 0o711) as directory:
        page = directory.path / move_page.NAME
        MovePage().made(directory)
        if not whole:
            os.truncate(page, 100)
        reader = threading.Thread(target=read, args=(page, stalled), daemon=True)
        reader.start()
        assert stalled.asked.wait(30)
        raised = within(lambda: MovePage().made(directory), stalled)
        reader.join(30)
    if whole:
        assert raised is None
    else:
        assert isinstance(raised, PermissionError)
        assert "has mode 0644 and 100 bytes, not 0644 and 4096" in str(raised)


def read(page: Path, stalled: StalledFiles) -> None:
    source, target = os.open(stalled.file, os.O_RDONLY), os.open(page, os.O_RDONLY)
    with mmap(source, 4096, MAP_PRIVATE, PROT_READ | 2) as memory, memoryview(memory) as view, suppress(OSError):
        os.readv(target, [view])
    os.close(source)
    os.close(target)
