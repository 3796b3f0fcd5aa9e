"""The arena's memory, as the kernel sees it."""

from pathlib import Path

import pytest

from mpsguard.pool.arena import Arena

_MIB = 1 << 20


def _flags() -> list[str]:
    """The kernel's flags of this process's mapping of an arena (proc_pid_smaps(5))."""
    ours, found = False, []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            ours = "/memfd:mpsguard-arena" in line
        elif ours and line.startswith("VmFlags:"):
            found += line.split()[1:]
    return found


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this kernel has no transparent huge pages"
)
def test_an_arena_asks_for_large_pages() -> None:
    arena = Arena(4 * _MIB)
    try:
        assert "hg" in _flags()
    finally:
        arena.close()
