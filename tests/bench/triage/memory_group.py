"""A memory cgroup in which the kernel ends a process that takes too much: how the suite causes an OOM kill."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LIMIT: Final = 64 << 20
"""Bytes that a process may take once the group is closed, beside what it has by then."""

_LIMITS: Final = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}
"""The file that limits a group, of cgroup v2 and v1, and the one that tells what it uses."""


class NoMemoryGroupError(Exception):
    """This machine, or this user, has no memory cgroup to make."""


@contextmanager
def made(name: str) -> Iterator[Path]:
    """A fresh group for a `with` block, cgroup v2 or v1; NoMemoryGroupError says why there is none."""
    group = _make(name)
    try:
        yield group
    finally:
        with suppress(OSError):  # a process that is still in it keeps it; it holds nothing else
            group.rmdir()


@contextmanager
def spawning_into(group: Path) -> Iterator[None]:
    """Let the processes that are started in a `with` block be born in the group, as those of a container are.

    A process that was moved later is looked for in the wrong group if its group was recorded when it came.
    """
    _move(group)
    try:
        yield
    finally:
        _move(group.parent)


def close(group: Path) -> None:
    """Let no more than LIMIT bytes be added to what the group has now."""
    limit = next(name for name in _LIMITS if (group / name).exists())
    used = int((group / _LIMITS[limit]).read_text())
    (group / limit).write_text(str(used + LIMIT))
    with suppress(OSError):  # without swap accounting there is nothing to forbid
        (group / "memory.swap.max").write_text("0")


def _move(group: Path) -> None:
    """Put this process into a group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _make(name: str) -> Path:
    reasons = []
    for parent, limit_file in _hierarchies(Path("/proc/mounts").read_text()):
        group = parent / name
        try:
            if limit_file == "memory.max" and "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                (parent / "cgroup.subtree_control").write_text("+memory")
            group.mkdir(exist_ok=True)
            (group / limit_file).read_text()
        except OSError as error:
            reasons.append(f"{group}: {error.strerror or error}")
            with suppress(OSError):
                group.rmdir()
            continue
        return group
    raise NoMemoryGroupError("; ".join(reasons) or "no cgroup file system with a memory controller is mounted")


def _hierarchies(mounts: str) -> Iterator[tuple[Path, str]]:
    """Where groups can be made, and the file that limits them."""
    for line in mounts.splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" and os.path.exists(f"{where}/cgroup.subtree_control"):
            if "memory" in (Path(where) / "cgroup.controllers").read_text().split():
                yield Path(where), "memory.max"
        elif kind == "cgroup" and "memory" in options.split(","):
            yield Path(where), "memory.limit_in_bytes"
