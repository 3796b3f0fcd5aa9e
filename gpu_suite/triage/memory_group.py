"""A memory cgroup in which the kernel ends a process that takes too much: how the suite causes an OOM kill."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LIMIT: Final = 64 << 20
"""Bytes that a process may take after it was put in; what it had before counts elsewhere."""


class NoMemoryGroupError(Exception):
    """This machine, or this user, has no memory cgroup to make."""


@contextmanager
def memory_group(name: str) -> Iterator[Path]:
    """A fresh group for a `with` block, cgroup v2 or v1; NoMemoryGroupError says why there is none."""
    made = _make(name)
    try:
        yield made
    finally:
        with suppress(OSError):  # a process that is still in it keeps it; it holds nothing else
            made.rmdir()


def enter(group: Path, pid: int) -> None:
    """Put a process in."""
    (group / "cgroup.procs").write_text(str(pid))


def _make(name: str) -> Path:
    reasons = []
    for parent, limit_file in _hierarchies(Path("/proc/mounts").read_text()):
        group = parent / name
        try:
            if limit_file == "memory.max" and "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                (parent / "cgroup.subtree_control").write_text("+memory")
            group.mkdir(exist_ok=True)
            (group / limit_file).write_text(str(LIMIT))
        except OSError as error:
            reasons.append(f"{group}: {error.strerror or error}")
            with suppress(OSError):
                group.rmdir()
            continue
        with suppress(OSError):  # without swap accounting there is nothing to forbid
            (group / "memory.swap.max").write_text("0")
        return group
    raise NoMemoryGroupError("; ".join(reasons) or "no cgroup file system with a memory controller is mounted")


def _hierarchies(mounts: str) -> Iterator[tuple[Path, str]]:
    """Where groups can be made, and the file that limits them."""
    for line in mounts.splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" and os.path.exists(f"{where}/cgroup.subtree_control"):  # noqa: PTH110
            if "memory" in (Path(where) / "cgroup.controllers").read_text().split():
                yield Path(where), "memory.max"
        elif kind == "cgroup" and "memory" in options.split(","):
            yield Path(where), "memory.limit_in_bytes"
