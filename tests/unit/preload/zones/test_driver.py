"""The driver itself is tried by `scripts/gpu-suite isolation`; here, what a program is told that cannot have it."""

from __future__ import annotations

import ctypes

import pytest

from mpsguard.preload.zones import NoZonesError, ZoneSpace


def test_without_a_driver_a_space_says_so_in_a_line() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(NoZonesError, match=r"^[^\n]+$"):
            ZoneSpace()
    else:
        pytest.skip("there is a CUDA driver on this machine")
