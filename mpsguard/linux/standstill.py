"""Whether processes that were sent SIGSTOP have come to a standstill: a signal takes effect a little later."""

from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_STILL: Final = frozenset(b"TtZX")
_IN_THE_KERNEL: Final = frozenset(b"D")


def stands_still(pid: int, *, or_waits: bool = False) -> bool:
    """Whether no thread of a process can run on: all are stopped, or have ended.

    With ``or_waits`` those count as well that wait in the kernel and cannot be interrupted: they will be stopped before
    they are back in their program.
    """
    still = _STILL | _IN_THE_KERNEL if or_waits else _STILL
    try:
        threads = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return True
    return all(_state(thread) in still for thread in threads)


def _state(thread: Path) -> int:
    try:
        stat = (thread / "stat").read_bytes()
    except OSError:
        return ord("X")
    return stat[stat.rindex(b")") + 2]
