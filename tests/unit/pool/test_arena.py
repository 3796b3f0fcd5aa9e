"""The arena's memory, as the kernel sees it."""

from pathlib import Path

import pytest

from mpsguard.pool.arena import Arena
from tests.harness.smaps import smaps

_MIB = 1 << 20


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this kernel has no transparent huge pages"
)
def test_an_arena_asks_for_large_pages() -> None:
    arena = Arena(4 * _MIB)
    try:
        assert "hg" in {flag for flags in smaps("mpsguard-arena", "VmFlags") for flag in flags}
    finally:
        arena.close()
