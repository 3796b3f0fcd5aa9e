"""A stranger holds the lock of a file that the guard reads, on XFS, where a read waits for it."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from mmap import MAP_PRIVATE, PROT_READ, mmap
from pathlib import Path

import pytest

from mpsguard.guard.sensors.gpu_core import DumpFile, parse
from mpsguard.linux.files.log_tail import LogTail
from mpsguard.linux.processes import procfs
from tests.harness.waiting import wait_for
from tests.hostile.stalled_files import StalledFiles

pytestmark = [
    pytest.mark.slow(seconds=5, reason="makes a file system"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="FUSE is needed"),
    pytest.mark.skipif(shutil.which("mkfs.xfs") is None, reason="xfsprogs are needed"),
]
PROMPT = 30.0
"""Seconds; a read that waits lasts until the file system of the stranger's ends."""


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Path]:
    image, mount = tmp_path / "image", tmp_path / "xfs"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    subprocess.run(["mkfs.xfs", "-q", str(image)], check=True)
    mount.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[StalledFiles]:
    directory = tmp_path / "stalled"
    directory.mkdir()
    with StalledFiles(directory) as files:
        yield files


@pytest.fixture
def overlay(xfs: Path) -> Iterator[Path]:
    parts = {name: xfs / name for name in ("lower", "upper", "work", "merged")}
    for part in parts.values():
        part.mkdir()
    options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(parts["merged"])], check=True)
    try:
        yield parts["merged"]
    finally:
        subprocess.run(["umount", str(parts["merged"])], check=True)


def hold(path: Path, stalled: StalledFiles) -> threading.Thread:
    """Write to a file from memory that never comes; return the thread that does it once it waits."""

    def write() -> None:
        source, target = os.open(stalled.file, os.O_RDONLY), os.open(path, os.O_WRONLY | os.O_APPEND)
        with mmap(source, 4096, MAP_PRIVATE, PROT_READ) as pages, memoryview(pages) as view, suppress(OSError):
            os.write(target, view)
        os.close(source)
        os.close(target)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    assert stalled.asked.wait(30)
    return thread


def within(work: threading.Thread, stalled: StalledFiles) -> bool:
    """Return whether the work ends while the file is held."""
    work.start()
    work.join(PROMPT)
    ended = not work.is_alive()
    stalled.close()
    work.join(30)
    return ended


def test_a_log_is_read_later(xfs: Path, stalled: StalledFiles) -> None:
    log = xfs / "server.log"
    log.write_text("")
    tail = LogTail(log)
    log.write_text("before\n")
    holder = hold(log, stalled)
    read: list[list[str]] = []
    assert within(threading.Thread(target=lambda: read.append(tail.read())), stalled)
    assert read == [[]]
    holder.join(30)
    assert tail.read() == ["before"]


def test_a_core_file_is_refused(xfs: Path, stalled: StalledFiles) -> None:
    core = xfs / "core.1"
    core.write_bytes(bytes(8192))
    holder = hold(core, stalled)
    refused: list[BaseException] = []

    def look() -> None:
        with core.open("rb") as file:
            try:
                parse(DumpFile(file.fileno()))
            except BlockingIOError as error:
                refused.append(error)

    assert within(threading.Thread(target=look), stalled)
    assert refused
    holder.join(30)


def test_a_log_on_an_overlay_is_waited_for(overlay: Path, stalled: StalledFiles) -> None:
    """What the page on security says of it; the end of the stranger's file system lets it go on."""
    log = overlay / "server.log"
    log.write_text("")
    tail = LogTail(log)
    log.write_text("before\n")
    holder = hold(log, stalled)
    read: list[list[str]] = []
    reader = threading.Thread(target=lambda: read.append(tail.read()))
    reader.start()
    assert reader.native_id is not None
    pid = reader.native_id
    try:
        wait_for("it waits", lambda: procfs.state(pid) == "D")
        assert read == []
    finally:
        stalled.close()
        reader.join(30)
        holder.join(30)
    assert read == [["before"]]
