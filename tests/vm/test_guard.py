"""The guard's sensors, triage and lifeline on the real module and the real /dev/nvidia-uvm-tools, in one scenario."""

from __future__ import annotations

import signal

import pytest

from tests.vm import workshop
from tests.vm.recycled import give_away, proofs
from tests.vm.sources import Kernel, driver_tree
from tests.vm.watched import boot_watched

pytestmark = [pytest.mark.slow(seconds=200, reason="boots virtual machines without KVM"), pytest.mark.timeout(3600)]

ADDRESS = 0x7FFF12345000
DEADLINE_S = 900.0
RECYCLED = (30, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(18_000)]))
"""Pids; `tests/unit/guard/sensors/test_kmod.py` has 10,000 of them without a kernel."""


def test_contained_named_ended_and_the_others_run_on(kernel: Kernel, branch: str) -> None:
    modules = workshop.build(driver_tree(branch), kernel, patched=True)
    result = boot_watched(kernel, modules, "agent", "watch.py", deadline_s=DEADLINE_S)
    assert result.status == 0, result.console[-4000:]
    assert result.trouble == []
    (facts,) = result.lines
    pid = facts["culprit"]
    assert "containment is on where a TSG is shared" in facts["mode"]
    assert facts["attached"]
    assert facts["well before"] == ["own 1"] * 3
    assert facts["access"] == "wild 1"
    assert facts["told"]
    assert facts["told by"] == [["kmod", pid, ADDRESS, "write"], ["uvm", pid, ADDRESS, "write"]]
    ((fault_class, confidence, culprit, victims, reason),) = facts["incidents"]
    assert (fault_class, confidence, culprit, victims) == ("mmu", "proven", pid, 0)
    assert "contained" in reason
    assert facts["ended"] == -signal.SIGKILL
    assert facts["well while held"] == ["own 1"] * 2
    assert facts["well after"] == ["own 1"] * 2
    assert facts["dead"] == "dead 0"
    again = facts["restarted"]
    assert (again["access"], again["signals"]) == ("wild 1", "signals 1")
    assert (again["first"], again["second"], again["read"]) == (0, True, True)
    assert [found[:4] for found in again["incidents"]] == [["mmu", "proven", again["culprit"], 0]]
    assert again["well"] == "own 1"


@pytest.mark.parametrize("rounds", RECYCLED)
@pytest.mark.parametrize("branch", ["550"], indirect=True)
def test_no_wrong_name_when_pids_are_given_away(kernel: Kernel, branch: str, rounds: int) -> None:
    modules = workshop.build(driver_tree(branch), kernel, patched=True)
    result = give_away(kernel, modules, rounds)
    assert result.status == 0, result.console[-4000:]
    assert result.trouble == []
    (facts,) = result.lines
    assert facts["wrong"] == 0, facts["examples"]
    assert (facts["given away"], facts["contained"]) == (rounds, rounds)
    assert facts["proven"] == proofs(rounds)
