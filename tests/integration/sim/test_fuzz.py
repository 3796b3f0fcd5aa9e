"""Hostile input over a real guard's sockets; `scripts/fuzz` does more of it."""

from typing import Any

import pytest

from fault_injection.fuzzing import campaign
from fault_injection.fuzzing.surface import Surface
from tests.integration.fuzzed_guard import OVER_SOCKETS

pytestmark = pytest.mark.slow(seconds=10, reason="a guard for each of the sockets")

SEED = 1
CASES = 300


@pytest.mark.parametrize("surface", OVER_SOCKETS.values(), ids=list(OVER_SOCKETS))
def test_the_guard_is_no_worse_off(surface: type[Surface[Any]]) -> None:
    fuzzed = surface()
    try:
        assert [failure for number in range(CASES) if (failure := campaign.one(fuzzed, SEED, number))] == []
        fuzzed.check()
    finally:
        fuzzed.close()
