"""Faults at the system calls with which a store uses the file system: an error, or the end of process or machine.

The functions of `os` and `fcntl` are counted where modules of `mpsguard.images.store` call them; all that these do to
files goes through them. The end of the machine is simulated: what was not synchronised with fsync is lost, the content
of files and the entries of the directories of pieces, as a journaling file system may lose it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

CALLS: Final = (
    *("fchmod", "fstat", "fsync", "ftruncate", "link", "listdir", "lseek", "mkdir", "open", "posix_fadvise"),
    *("pread", "preadv", "pwrite", "read", "rename", "rmdir", "scandir", "stat", "unlink", "write"),
)
WRITES: Final = ("write", "pwrite")

Fault = Callable[[str, tuple[Any, ...]], None]
"""Called in the place of a call, with its name and arguments; returns to have it made all the same."""


class Faults:
    """Counts the calls, and lets one of them fail."""

    def __init__(self, at: int = -1, fault: Fault | None = None) -> None:
        self.at = at
        """Index of the call; -1 for none."""
        self._fault = fault
        self.seen: list[str] = []
        self.synced: set[int] = set()
        """Inodes of files and directories that nothing was written to since they were synchronised."""

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Put itself in the place of the functions."""
        functions = [(os, name) for name in CALLS] + [(fcntl, "flock")]
        originals = [getattr(module, name) for module, name in functions]
        for (module, name), original in zip(functions, originals, strict=True):
            setattr(module, name, self._counting(name, original))
        try:
            yield
        finally:
            for (module, name), original in zip(functions, originals, strict=True):
                setattr(module, name, original)

    def _counting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            caller = sys._getframe(1).f_globals["__name__"]
            if not caller.startswith("mpsguard.images.store"):
                return original(*arguments, **named)
            self.seen.append(name)
            if len(self.seen) - 1 == self.at and self._fault is not None:
                self._fault(name, arguments)
            result = original(*arguments, **named)
            self._follow(name, arguments, named)
            return result

        return call

    def _follow(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if name == "fsync":
            self.synced.add(_inode(arguments[0]))
        elif name in WRITES:
            self.synced.discard(_inode(arguments[0]))
        elif name == "rename":
            directory = Path(f"/proc/self/fd/{named['dst_dir_fd']}", arguments[1]).parent
            self.synced.discard(directory.stat().st_ino)


def _inode(fd: int) -> int:
    return os.stat(f"/proc/self/fd/{fd}").st_ino


def error(number: int) -> Fault:
    def fail(name: str, arguments: tuple[Any, ...]) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def kill(name: str, arguments: tuple[Any, ...]) -> None:
    """End the process; a write has been made in part."""
    if name in WRITES:
        half = memoryview(arguments[1])[: len(arguments[1]) // 2]
        if name == "pwrite":
            os.pwrite(arguments[0], half, arguments[2])
        else:
            os.write(arguments[0], half)
    os.kill(os.getpid(), signal.SIGKILL)


def lose(store: Path, before: set[int], faults: Faults) -> None:
    """Lose what a failure of power may lose.

    Args:
        store: its directory.
        before: inodes that were there, and on disk, at the beginning.
        faults: what has been synchronised since.
    """
    for path in sorted(store.rglob("*"), reverse=True):
        found = path.lstat()
        if found.st_ino in before | faults.synced or not stat.S_ISREG(found.st_mode):
            continue
        os.truncate(path, 0)
    for path in (store / "pieces").glob("*/*"):
        new = path.stat().st_ino not in before
        if new and path.parent.stat().st_ino not in faults.synced:
            path.unlink()
