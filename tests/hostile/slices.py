"""A share of the processors for each user and for the guard, in the tree that systemd makes.

There users, services and the guard are in three slices; the weight of the guard's is in mpsguard.slice.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_V1: Final = Path("/sys/fs/cgroup/cpu")
_V2: Final = Path("/sys/fs/cgroup")
_DEFAULT: Final = 100
"""systemd's CPUWeight= for a unit that sets none."""
_MOST: Final = 10000
"""The largest one: of all groups together, against what else the machine does, which is not to be measured."""
GUARD: Final = "mpsguard.slice"


def of_user(uid: int) -> str:
    """The group of a user's processes."""
    return f"user.slice/user-{uid}.slice"


class Slices:
    """Owns control groups of the processors, by their paths; without the controller it does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._root = next((root / name for root in (_V1, _V2) if _has_controller(root)), None)
        self._unified = self._root is not None and self._root.parent == _V2
        self._made: list[Path] = []

    @property
    def present(self) -> bool:
        """Whether there are any."""
        return self._root is not None

    def put(self, pid: int, group: str, weight: int = _DEFAULT) -> None:
        """Put a process, and what it starts from now on, into a group."""
        if self._root is None:
            return
        directory = self._root / group
        self._make(self._root, _MOST)
        for each in reversed((directory, *directory.parents[: group.count("/")])):
            self._make(each, weight if each == directory else _DEFAULT)
        with suppress(ProcessLookupError):
            (directory / "cgroup.procs").write_text(str(pid))

    def weight(self, group: str) -> int:
        """The weight of a group that was made, as systemd counts it."""
        assert self._root is not None
        if self._unified:
            return int((self._root / group / "cpu.weight").read_text())
        return int((self._root / group / "cpu.shares").read_text()) * _DEFAULT // 1024

    def _make(self, directory: Path, weight: int) -> None:
        if directory in self._made:
            return
        directory.mkdir(parents=True, exist_ok=True)
        if self._unified:
            (directory.parent / "cgroup.subtree_control").write_text("+cpu")
            (directory / "cpu.weight").write_text(str(weight))
        else:
            # What systemd writes for a weight where there is no unified hierarchy.
            (directory / "cpu.shares").write_text(str(1024 * weight // _DEFAULT))
        self._made.append(directory)

    def close(self) -> None:
        """Take all away; what still runs in one keeps it."""
        if self._root is None:
            return
        for directory in reversed(self._made):
            with suppress(OSError):
                for pid in (directory / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        (self._root.parent / "cgroup.procs").write_text(pid)
                directory.rmdir()


def _has_controller(root: Path) -> bool:
    if not os.access(root, os.W_OK):
        return False
    if root == _V1:
        return (root / "cpu.shares").exists() or (root / "cgroup.procs").exists()
    with suppress(OSError):
        return "cpu" in (root / "cgroup.subtree_control").read_text().split()
    return False


@contextmanager
def slices() -> Iterator[Slices]:
    """Groups named after this process."""
    made = Slices(f"mpsguard-siege-{os.getpid()}")
    try:
        yield made
    finally:
        made.close()
