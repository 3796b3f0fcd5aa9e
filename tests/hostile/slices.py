"""A share of the processors for each user, as systemd gives one to each user's slice and to each service."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_V1: Final = Path("/sys/fs/cgroup/cpu")
_V2: Final = Path("/sys/fs/cgroup")
_DEFAULT: Final = 100
"""systemd's CPUWeight= for a unit that sets none."""


class Slices:
    """Owns control groups of the processors, one for each name; without the controller it does nothing."""

    def __init__(self, name: str) -> None:
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
        if directory not in self._made:
            directory.mkdir(parents=True, exist_ok=True)
            if self._unified:
                (self._root / "cgroup.subtree_control").write_text("+cpu")
                (directory / "cpu.weight").write_text(str(weight))
            else:
                # What systemd writes for a weight where there is no unified hierarchy.
                (directory / "cpu.shares").write_text(str(1024 * weight // _DEFAULT))
            self._made.append(directory)
        with suppress(ProcessLookupError):
            (directory / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Take all away; what still runs in one keeps it."""
        if self._root is None:
            return
        for directory in (*self._made, self._root):
            with suppress(OSError):
                for pid in (directory / "cgroup.procs").read_text().split():
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
