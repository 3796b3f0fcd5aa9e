"""`mpsguard-ctl vault`: what its tables show."""

import pytest

from mpsguard.cli.vault import _mebibytes


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0"), (4096, "0.0039"), (1 << 17, "0.12"), (1 << 20, "1"), (3 << 19, "1.5"), (32 << 30, "32768")],
)
def test_a_small_region_is_not_shown_as_none(size: int, shown: str) -> None:
    assert _mebibytes(size) == shown
