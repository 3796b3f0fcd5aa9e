"""Opening directories by name: owners, modes, and links on the way."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mpsguard.linux.files.directory import Directory

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of other users")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def refused(path: Path) -> str:
    """Open it, which is refused; the path that the error names, below this one or above."""
    with pytest.raises(PermissionError) as error:
        Directory.make(path, 0o711)
    assert error.value.strerror
    return str(error.value.filename)


def test_what_is_missing_is_made_whatever_the_umask_and_not_listed_by_others(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with Directory.make(tmp_path / "above" / "it", 0o755) as made:
            assert made.path == tmp_path / "above" / "it"
    finally:
        os.umask(before)
    assert (mode(tmp_path / "above"), mode(tmp_path / "above" / "it")) == (0o711, 0o755)


def test_what_is_there_keeps_its_mode_until_it_is_narrowed(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    with Directory.make(there, 0o711) as directory:
        assert mode(there) == 0o755
        directory.narrow(0o711)
        assert mode(there) == 0o711
        directory.narrow(0o755)
        assert mode(there) == 0o711


def test_nothing_is_made_where_something_else_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Directory.make(tmp_path / "file" / "below", 0o711)
    with pytest.raises(FileNotFoundError):
        Directory.open(tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@needs_root
def test_a_directory_of_a_stranger_is_refused_wherever_it_is_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "theirs" / "ours").mkdir(parents=True)
    os.chown(tmp_path / "theirs", STRANGER, STRANGER)
    for path in ("theirs", "theirs/ours", "theirs/new/ours"):
        assert refused(tmp_path / path) == str(tmp_path / "theirs")
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["ours"]


@needs_root
@pytest.mark.parametrize(
    ("mode", "gid", "as_parent", "as_last"),
    [
        (0o755, STRANGER, True, True),
        (0o777, 0, False, False),
        (0o1777, 0, True, False),
        (0o775, 0, True, True),
        (0o775, 4, True, False),
        # The group `users`, which Debian and others give to every user.
        (0o775, 100, False, False),
        (0o775, 12345, False, False),
        (0o1775, 12345, True, False),
    ],
)
def test_a_directory_in_which_strangers_write(
    tmp_path: Path, mode: int, gid: int, *, as_parent: bool, as_last: bool
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 0, gid)
    shared.chmod(mode)
    for path, allowed in ((shared / "ours", as_parent), (shared, as_last)):
        if allowed:
            Directory.make(path, 0o711).close()
        else:
            assert refused(path) == str(shared)


@needs_root
@pytest.mark.parametrize(("mode", "gid", "allowed"), [(0o775, 4, True), (0o1775, 100, False), (0o1775, 12345, False)])
def test_a_link_where_a_group_of_users_makes_names(tmp_path: Path, mode: int, gid: int, *, allowed: bool) -> None:
    """One of its members could have brought a link of root's there."""
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 0, gid)
    shared.chmod(mode)
    (tmp_path / "real").mkdir()
    (shared / "link").symlink_to(tmp_path / "real")
    if allowed:
        Directory.open(shared / "link").close()
    else:
        assert refused(shared / "link") == str(shared / "link")


def test_a_link_of_ours_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "absolute").symlink_to(tmp_path / "link")
    for path in ("link/below", "absolute/below", "link/../absolute/below"):
        with Directory.open(tmp_path / path) as directory:
            assert os.fstat(directory.fd).st_ino == (tmp_path / "real" / "below").stat().st_ino
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="round"):
        Directory.open(tmp_path / "round")


@needs_root
def test_a_link_that_a_stranger_may_have_put_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "theirs").symlink_to("real")
    os.lchown(tmp_path / "theirs", STRANGER, STRANGER)
    assert refused(tmp_path / "theirs") == str(tmp_path / "theirs")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "ours").symlink_to(tmp_path / "real")
    assert refused(shared / "ours" / "below") == str(shared / "ours")


@needs_root
def test_files_of_strangers_and_other_things_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to("victim")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "theirs").touch()
    os.chown(tmp_path / "theirs", STRANGER, STRANGER)
    with Directory.open(tmp_path) as directory:
        for name in ("link", "fifo", "theirs"):
            with pytest.raises(OSError, match=name):
                directory.open_file(name, os.O_RDWR)
        with pytest.raises(PermissionError):
            directory.remove("theirs")
        (tmp_path / "writable").touch()
        (tmp_path / "writable").chmod(0o666)
        with pytest.raises(PermissionError):
            directory.write("writable", b"", 0o600)
        directory.write("link", b"new", 0o640)
        assert (tmp_path / "victim").read_text() == "precious"
        assert ((tmp_path / "link").read_text(), mode(tmp_path / "link")) == ("new", 0o640)


def test_a_socket_has_its_mode_from_the_start_whatever_the_umask(tmp_path: Path) -> None:
    with Directory.open(tmp_path) as directory, socket.socket(socket.AF_UNIX) as first:
        before = os.umask(0o077)
        try:
            directory.bind(first, "sock", 0o666)
            assert (mode(tmp_path / "sock"), os.umask(0o077)) == (0o666, 0o077)
        finally:
            os.umask(before)
        assert first.getsockname() == str(tmp_path / "sock")
        with socket.socket(socket.AF_UNIX) as second:
            directory.bind(second, "sock", 0o660, os.getegid())
            assert mode(tmp_path / "sock") == 0o660
        (tmp_path / "file").touch()
        with pytest.raises(FileExistsError), socket.socket(socket.AF_UNIX) as third:
            directory.bind(third, "file", 0o600)


@needs_root
def test_for_another_user_the_last_directory_decides() -> None:
    """A home may lie in a directory of a third user."""
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        top.chmod(0o711)
        home, ours = top / "third" / "home", top / "ours"
        home.mkdir(parents=True)
        ours.mkdir()
        os.chown(home.parent, 12345, 12345)
        os.chown(home, STRANGER, STRANGER)
        os.chown(ours, 12345, 12345)
        program = (
            "import os, sys; from pathlib import Path; from mpsguard.linux.files.directory import Directory\n"
            f"os.setgroups([]); os.setresgid(*[{STRANGER}] * 3); os.setresuid(*[{STRANGER}] * 3)\n"
            "Directory.make(Path(sys.argv[1]), 0o711).close()\n"
        )

        def status(path: Path) -> int:
            made = subprocess.run([sys.executable, "-c", program, str(path)], check=False, capture_output=True)
            return made.returncode

        assert status(home / "mps") == 0
        assert (home / "mps").stat().st_uid == STRANGER
        assert status(ours) == 1
