"""What people, scripts and programs do to a pipe directory that a guard serves."""

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.harness.stopped import stopped
from tests.integration.own_paths import mounts

STRANGER = 65534


@dataclass(frozen=True)
class Way:
    """One thing that happens to a directory.

    Args:
        name: of the test.
        happens: does it, to a public directory, in several steps: the guard stands still meanwhile (`Way.to`), or it
            may mend the directory after the first one.
        undo: puts it right, where a guard may not.
        mounts: whether it takes a mount namespace.
    """

    name: str
    happens: Callable[[Path], object]
    undo: Callable[[Path], object] | None = None
    mounts: bool = False

    def to(self, public: Path, guard: int) -> None:
        """Let it happen to the public directory of a guard, which is a process."""
        with stopped(guard):
            self.happens(public)


def _replaced(public: Path) -> None:
    public.rename(public.with_name("old"))
    public.mkdir(mode=0o755)


def _link(public: Path) -> None:
    public.rename(public.with_name("old"))
    public.with_name("elsewhere").mkdir()
    public.symlink_to("elsewhere")


def _dead_socket(public: Path) -> None:
    (public / "control").unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(public / "control"))


def _renamed_socket(public: Path) -> None:
    (public / "control").rename(public / "control.bak")


def _exchanged_sockets(public: Path) -> None:
    (public / "control").rename(public / "x")
    (public / "control_privileged").rename(public / "control")
    (public / "x").rename(public / "control_privileged")


def _every_entry(public: Path) -> None:
    for entry in public.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _moved_and_back(public: Path) -> None:
    old = public.with_name("old")
    public.rename(old)
    public.mkdir()
    public.rmdir()
    old.rename(public)
    (public / "control").chmod(0o600)


def _chmod_recursively(public: Path) -> None:
    for path in (public, *public.iterdir()):
        path.chmod(0o777)


def _chown_recursively(public: Path) -> None:
    for path in (public, *public.iterdir()):
        os.chown(path, STRANGER, STRANGER)


def _given_to_a_group(public: Path) -> None:
    os.chown(public, -1, STRANGER)
    public.chmod(0o770)


def _tmpfs_above(public: Path) -> None:
    above = public.parent
    kept = above.with_name(f"{above.name}-kept")
    kept.mkdir()
    mounts.mount("--bind", above, kept)
    mounts.tmpfs(above, "mode=0755")
    # All but the public directory is where it was.
    for entry in kept.iterdir():
        if entry.is_file():
            shutil.copy(entry, above)
        elif entry.is_dir() and entry.name != public.name:
            (above / entry.name).mkdir()
            mounts.mount("--bind", entry, above / entry.name)


def _and_free(public: Path) -> None:
    mounts.tmpfs(public, "mode=0755")
    mounts.unmount(public)
    (public / "control").chmod(0)


def _bound_over(public: Path) -> None:
    other = public.with_name("other")
    other.mkdir(mode=0o755)
    (other / "control").touch()
    (other / "control").unlink()
    mounts.mount("--bind", other, public)


MENDED = (
    Way("removed", shutil.rmtree),
    Way("emptied", _every_entry),
    Way("one socket removed", lambda public: (public / "control").unlink()),
    Way("the privileged socket removed", lambda public: (public / "control_privileged").unlink()),
    Way("the lock removed", lambda public: (public / "control_lock").unlink()),
    Way("renamed", lambda public: public.rename(public.with_name("old"))),
    Way("another directory in its place", _replaced),
    Way("a link of our own in its place", _link),
    Way("renamed and back, with another mode", _moved_and_back),
    Way("a socket renamed", _renamed_socket),
    Way("sockets exchanged", _exchanged_sockets),
    Way("a dead socket in the place of one", _dead_socket),
    Way("closed to other users", lambda public: public.chmod(0o700)),
    Way("closed to all", lambda public: public.chmod(0)),
    Way("open to all", _chmod_recursively),
    Way("a socket closed to other users", lambda public: (public / "control").chmod(0o600)),
    Way("a socket closed to all", lambda public: (public / "control").chmod(0)),
)
"""The guard puts these right by itself."""

MENDED_BY_ROOT = (
    Way("given away", lambda public: os.chown(public, STRANGER, -1)),
    Way("given away with all it has", _chown_recursively),
    Way("given to a group", _given_to_a_group),
    Way("a socket given away", lambda public: os.chown(public / "control", STRANGER, -1)),
    Way("mounted over", lambda public: mounts.tmpfs(public, "mode=0755"), mounts=True),
    Way("mounted over above", _tmpfs_above, mounts=True),
    Way("mounted over, and again free", _and_free, mounts=True),
    Way("bound over", _bound_over, mounts=True),
)


def _file(public: Path) -> None:
    shutil.rmtree(public)
    public.write_text("no directory")


def _dangling(public: Path) -> None:
    shutil.rmtree(public)
    public.symlink_to(public.with_name("file"))
    public.with_name("file").touch()


def _instead_of_a_socket(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def happens(public: Path) -> None:
        (public / "control").unlink()
        make(public / "control")

    return happens


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _strangers(public: Path) -> None:
    public.parent.chmod(0o1777)
    shutil.rmtree(public)
    public.mkdir()
    os.chown(public, STRANGER, STRANGER)


def _strangers_link(public: Path) -> None:
    public.parent.chmod(0o1777)
    shutil.rmtree(public)
    target = public.with_name("target")
    target.mkdir(mode=0o711)
    public.symlink_to(target)
    os.chown(public, STRANGER, STRANGER, follow_symlinks=False)


def _no_strangers(public: Path) -> None:
    _remove(public)
    public.parent.chmod(0o755)


LEFT = (
    Way("a file in its place", _file, Path.unlink),
    Way("a link to a file in its place", _dangling, Path.unlink),
    Way("a file for a socket", _instead_of_a_socket(Path.touch), lambda public: (public / "control").unlink()),
    Way("a directory for a socket", _instead_of_a_socket(Path.mkdir), lambda public: (public / "control").rmdir()),
    Way(
        "a link for a socket",
        _instead_of_a_socket(lambda control: control.symlink_to("control_privileged")),
        lambda public: (public / "control").unlink(),
    ),
)
"""The guard may not put these right: it says so."""

LEFT_BY_ROOT = (
    Way("a stranger's directory in its place", _strangers, _no_strangers),
    Way("a stranger's link in its place", _strangers_link, _no_strangers),
    Way("mounted over, open to all", lambda public: mounts.tmpfs(public, "mode=1777"), mounts.unmount, mounts=True),
    Way("mounted over, read-only", lambda public: mounts.tmpfs(public, "ro,mode=0711"), mounts.unmount, mounts=True),
    Way(
        "mounted over, full",
        lambda public: mounts.tmpfs(public, "size=4k,nr_inodes=2,mode=0711"),
        mounts.unmount,
        mounts=True,
    ),
)
