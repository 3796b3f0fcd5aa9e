"""The page on which the guard asks programs to move: what it has for each, and that it is made again with all of it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mpsguard.guard.broker import move_page
from mpsguard.guard.broker.move_page import MovePage, MoveRequest
from mpsguard.linux.files.directory import Directory
from tests.integration.own_paths import mounts

MAKES = """
import errno, sys
from pathlib import Path
from mpsguard.guard.broker.move_page import MovePage
from mpsguard.linux.files.directory import Directory
with Directory.open(Path(sys.argv[1])) as directory:
    try:
        MovePage().made(directory)
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with Directory.make(tmp_path / "second", 0o711) as made:
        yield made


def slots(directory: Directory) -> list[tuple[int, ...]]:
    page = (directory.path / move_page.NAME).read_bytes()
    return [slot for slot in move_page.SLOT.iter_unpack(page) if slot[0]]


def test_without_a_page_none_is_asked() -> None:
    assert not MovePage().ask(MoveRequest(7, 1, None, False))


def test_a_program_finds_its_request_until_it_is_taken_back(directory: Directory) -> None:
    page = MovePage()
    page.made(directory)
    assert page.ask(MoveRequest(7, 1, 12.5, True))
    assert page.ask(MoveRequest(8, 2, None, False))
    assert slots(directory) == [(7, 1, 1250, move_page.SHUT_DOWN), (8, 2, 0, 0)]
    page.take_back(1)
    assert slots(directory) == [(8, 2, 0, 0)]


def test_others_may_read_it_alone(directory: Directory) -> None:
    MovePage().made(directory)
    status = (directory.path / move_page.NAME).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_size) == (0o644, move_page.BYTES)


def test_one_that_is_gone_is_made_again_with_what_is_asked(directory: Directory) -> None:
    page = MovePage()
    page.made(directory)
    page.ask(MoveRequest(7, 1, None, False))
    (directory.path / move_page.NAME).unlink()
    page.made(directory)
    assert slots(directory) == [(7, 1, 0, 0)]


def test_the_next_guard_uses_the_one_that_is_there_and_asks_nothing_of_it(directory: Directory) -> None:
    page = MovePage()
    page.made(directory)
    page.ask(MoveRequest(7, 1, None, False))
    inode = os.stat(directory.path / move_page.NAME).st_ino
    MovePage().made(directory)
    assert slots(directory) == []
    assert os.stat(directory.path / move_page.NAME).st_ino == inode


@pytest.mark.parametrize(
    ("mode", "size", "why"),
    [
        (0o666, move_page.BYTES, "other users may write to it; remove it"),
        (0o664, move_page.BYTES, "other users may write to it; remove it"),
        (0o600, move_page.BYTES, "has mode 0600 and 4096 bytes, not 0644 and 4096"),
        (0o644, 100, "has mode 0644 and 100 bytes, not 0644 and 4096"),
    ],
)
def test_one_that_would_have_to_be_changed_is_refused_and_left(
    directory: Directory, mode: int, size: int, why: str
) -> None:
    MovePage().made(directory)
    path = directory.path / move_page.NAME
    path.chmod(mode)
    os.truncate(path, size)
    with pytest.raises(PermissionError, match=why):
        MovePage().made(directory)
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_size) == (mode, size)


def test_there_is_room_for_so_many(directory: Directory) -> None:
    page = MovePage()
    page.made(directory)
    most = move_page.BYTES // move_page.SLOT.size
    assert all(page.ask(MoveRequest(1 + number, 1 + number, None, False)) for number in range(most))
    assert not page.ask(MoveRequest(most + 1, most + 1, None, False))


@pytest.mark.root
@pytest.mark.skipif(not mounts.may_mount(), reason="mounts file systems")
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "sparse"])
def test_a_file_system_that_others_have_filled_is_an_error(tmp_path: Path, *, is_there: bool) -> None:
    """A store into a page for which there is no room would end the guard by SIGBUS."""

    def body() -> None:
        mounts.tmpfs(tmp_path, "size=64k,mode=0755")
        with Directory.make(tmp_path / "second", 0o711) as directory:
            if is_there:
                os.close(directory.open_file(move_page.NAME, os.O_RDWR, move_page.MODE))
                os.truncate(directory.path / move_page.NAME, move_page.BYTES)
            with (tmp_path / "full").open("wb", buffering=0) as full, suppress(OSError):
                while True:
                    full.write(bytes(4096))
            command = [sys.executable, "-c", MAKES, str(directory.path)]
            made = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (made.returncode, made.stdout) == (0, "ENOSPC\n"), made.stderr

    mounts.in_own_namespace(body)
