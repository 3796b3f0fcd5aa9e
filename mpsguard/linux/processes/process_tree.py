"""The processes below one, as /proc tells; and the names that processes of other pid namespaces have there."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs

_PROC: Final = Path("/proc")
# include/uapi/linux/prctl.h
_SET_PDEATHSIG: Final = 1
_SET_CHILD_SUBREAPER: Final = 36
_LOOKS: Final = 5
"""At most; one is enough unless a parent ends while /proc is read."""


def descendants(root: int) -> list[ProcessKey]:
    """Return all living processes below ``root``, in no order; orphans are found if ``root`` adopts them.

    That it does is for the caller to see to: PR_SET_CHILD_SUBREAPER (prctl(2)).
    """
    found: dict[ProcessKey, None] = {}
    for _ in range(_LOOKS):
        parents, living, whole = _look()
        for pid in _below(root, parents) & living:
            with suppress(ProcessLookupError):
                found[procfs.process_key(pid)] = None
        if whole:
            break
    return list(found)


def descendants_at_rest(root: int) -> list[ProcessKey]:
    """All processes below ``root``, ended ones that were not reaped too, if none of them forks or ends meanwhile.

    That is for the caller to see to: those that are stopped do neither. Looks at these alone, where `descendants` looks
    at every process of the machine (proc_tid_children(5)).
    """
    found: list[ProcessKey] = []
    waiting = [root]
    while waiting:
        try:
            below = _children(waiting.pop())
        except FileNotFoundError:
            # The kernel was built without such lists.
            return descendants(root)
        found += below
        waiting += [key.pid for key in below]
    return found


def adopts_orphans() -> None:
    """Become the parent of every orphan below this process. OSError if the kernel refuses."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def ends_with_parent() -> None:
    """Have this process, without its children, killed at its parent's end. OSError if the kernel refuses.

    The parent may have ended before. It is the thread that has started this process, for the kernel.
    """
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    # Only here: ctypes takes a while to load.
    import ctypes  # noqa: PLC0415

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def pid_namespace(pid: int | str = "self") -> int | None:
    """The inode of a process' pid namespace, or None if it may not be looked at or is gone."""
    try:
        return (_PROC / str(pid) / "ns" / "pid").stat().st_ino
    except OSError:
        return None


def innermost_pid(pid: int) -> int | None:
    """What a process calls itself in its own pid namespace, or None if it is gone."""
    try:
        words = procfs.status_of((_PROC / str(pid) / "status").read_bytes()).get("NSpid", [])
    except OSError:
        return None
    return int(words[-1]) if words else None


def _look() -> tuple[dict[int, int], set[int], bool]:
    """Parents by pid, the living, and whether no parent was missing: it had ended, and its child moved on.

    Reads what never waits: most of these processes are strangers' (`stat_reader`).
    """
    parents: dict[int, int] = {}
    living: set[int] = set()
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            status = procfs.status_of(procfs.read_short(f"{entry}/status"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(entry.name)
        parents[pid] = int(status["PPid"][0])
        if status["State"][0] not in ("Z", "X"):
            living.add(pid)
    return parents, living, all(parent in parents or parent == 0 for parent in parents.values())


def _children(pid: int) -> list[ProcessKey]:
    """Return the children of a process, of all its threads; FileNotFoundError if the kernel does not say."""
    found = []
    try:
        threads = list((_PROC / str(pid) / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
    for thread in threads:
        try:
            children = (thread / "children").read_bytes().split()
        except (FileNotFoundError, ProcessLookupError):
            if (thread / "stat").exists():
                raise
            continue
        for child in children:
            with suppress(ProcessLookupError):
                found.append(procfs.process_key(int(child)))
    return found


def _below(root: int, parents: dict[int, int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    below: set[int] = set()
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in below:
                below.add(child)
                waiting.append(child)
    return below
