"""The present boot of this machine: what positions and times that outlive a process are of."""

from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the kernel's random id of this boot."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def resume_after(saved: tuple[str, int] | None) -> int | None:
    """Return where to go on from a saved position, a boot id and a number that grows.

    Args:
        saved: The position; None if there is none, and then the result is None.

    Returns:
        The number; -1, which is before everything of this boot, if it was saved in another one.
    """
    if saved is None:
        return None
    boot, number = saved
    return number if boot == boot_id() else -1
