"""A stranger holds the inode's lock of its own zone table while the guard asks it to move."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.harness.waiting import wait_for
from tests.hostile.stalled_files import StalledFiles
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=20, reason="attacks a real guard"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="FUSE is needed"),
]
ENDS_WITHIN = 30.0
"""Seconds; what waits for the stranger's file waits until the test gives up."""
WRITER = """
import mmap, os, sys
page = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 4096, prot=mmap.PROT_READ)
os.pwrite(os.open(sys.argv[2], os.O_WRONLY), page, 0)
"""


@contextmanager
def held(table: Path) -> Iterator[None]:
    """Hold the lock of a file by a write of a page that never comes."""
    with TemporaryDirectory() as directory, StalledFiles(Path(directory)) as stalled:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(stalled.file), str(table)])
        try:
            assert stalled.asked.wait(ENDS_WITHIN)
            yield
        finally:
            stalled.close()
            writer.kill()
            writer.wait()


def table_of(pid: int) -> Path:
    there = [Path(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    return next(path for path in there if os.readlink(path).startswith("/memfd:mpsguard-zones"))


def test_the_guard_answers_and_ends_while_a_table_is_held() -> None:
    with Guarded(domain="standby = true\n") as guarded:
        guarded.environment["MPSGUARD_SECOND_DRIVER"] = "cold"
        guarded.start()
        client = guarded.client()
        client.expect("started")
        survives = [{"survives": "yes", "reason": ""}]
        wait_for("it is known", lambda: guarded.asked("clients")["survival"] == survives)
        with held(table_of(client.pid)):
            command = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guarded.run_directory)]
            asked = subprocess.Popen([*command, "move", str(client.pid)], stdout=subprocess.PIPE)
            page = guarded.root / "mps" / "second" / "moves"
            wait_for("it is asked", lambda: any(page.read_bytes()))
            assert len(guarded.asked("clients")["clients"]) == 1
            began = time.monotonic()
            assert guarded.stop() == 0
            assert time.monotonic() - began < ENDS_WITHIN
            asked.kill()
            asked.communicate()
