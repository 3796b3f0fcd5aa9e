"""Overruns of a whole GiB, a million wild pointers, three offenders at once: the group lives, with few sinks."""

from __future__ import annotations

import pytest

from tests.vm import workshop
from tests.vm.guests import run_program
from tests.vm.sources import Kernel, driver_tree

pytestmark = [
    pytest.mark.slow(seconds=300, reason="boots virtual machines without KVM"),
    pytest.mark.timeout(2400),
    pytest.mark.soak,
]

OVERRUN_MIB, POINTERS, ACCESSES = 1024, 1_000_000, 20_000
DEADLINE_S = 1200.0
MOST_SINKS = 600
OVERRUN_MS = 60_000
LEAST_ROUNDS = 0.7
"""Of those beside three clients that make as many accesses to memory of their own."""


@pytest.mark.parametrize("branch", ["550"], indirect=True)
def test_long_campaigns(kernel: Kernel, branch: str) -> None:
    modules = workshop.build(driver_tree(branch), kernel, patched=True)
    arguments = map(str, (OVERRUN_MIB, POINTERS, ACCESSES))
    run = run_program(kernel, modules, "campaign", *arguments, deadline_s=DEADLINE_S)
    assert run.status == 0, run.console[-4000:]
    assert run.trouble == []
    overrun, pointers, offenders = run.lines
    assert overrun["alive"]
    assert overrun["ms"] < OVERRUN_MS
    assert max(overrun["sinks"], pointers["sinks"]) <= MOST_SINKS
    assert pointers["alive"]
    assert offenders["named"] == 3
    assert offenders["rounds"] >= LEAST_ROUNDS * offenders["rounds_calm"]
