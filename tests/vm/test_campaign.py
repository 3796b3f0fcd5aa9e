"""Overruns of a whole GiB, a million wild pointers, three offenders at once: the group lives, with few sinks."""

from __future__ import annotations

import pytest

from tests.vm.campaign import LEAST_ROUNDS, MOST_SINKS, OVERRUN_MS, run_campaign
from tests.vm.sources import Kernel, driver_tree

pytestmark = [
    pytest.mark.slow(seconds=300, reason="boots virtual machines without KVM"),
    pytest.mark.timeout(3600),
    pytest.mark.soak,
]


@pytest.mark.parametrize("branch", ["550"], indirect=True)
def test_long_campaigns(kernel: Kernel, branch: str) -> None:
    found = run_campaign(kernel, driver_tree(branch))
    assert found.run.status == 0, found.run.console[-4000:]
    assert found.run.trouble == []
    assert found.overrun["alive"]
    assert found.overrun["ms"] < OVERRUN_MS
    assert max(found.overrun["sinks"], found.pointers["sinks"]) <= MOST_SINKS
    assert found.pointers["alive"]
    assert found.offenders["named"] == 3
    assert found.share >= LEAST_ROUNDS
