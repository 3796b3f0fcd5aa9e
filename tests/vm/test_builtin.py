"""NVIDIA's tests of nvidia-uvm, and ours beside them, pass with the patched module. Others than 550's: `make soak`."""

from __future__ import annotations

import pytest

from tests.vm import workshop
from tests.vm.guests import run_program
from tests.vm.sources import Kernel, driver_tree

pytestmark = [pytest.mark.slow(seconds=30, reason="boots virtual machines without KVM"), pytest.mark.timeout(3600)]

DEADLINE_S = 900.0
LEAST = 14
OURS = "FAULT_ISOLATION"
MEMORY_MANAGER = "PMM_SANITY"
"""Half of the time. The memory manager is not patched: `test_cost.py` compares its code with the stock module's."""


@pytest.mark.parametrize(
    ("branch", "patched", "which"),
    [
        ("550", True, ""),
        pytest.param("550", True, "all", marks=pytest.mark.soak),
        pytest.param("550", False, "all", marks=pytest.mark.soak),
        pytest.param("535", True, "all", marks=pytest.mark.soak),
        pytest.param("535", False, "all", marks=pytest.mark.soak),
    ],
    indirect=["branch"],
)
def test_builtin_tests_pass(kernel: Kernel, branch: str, patched: bool, which: str) -> None:
    modules = workshop.build(driver_tree(branch), kernel, patched=patched)
    run = run_program(kernel, modules, "builtin", which, parameters="uvm_enable_builtin_tests=1", deadline_s=DEADLINE_S)
    # The log is not looked at: some of these tests provoke UVM's assertions on purpose.
    assert run.status == 0, run.console[-4000:]
    assert len(run.lines) >= LEAST
    assert any(line["builtin"] == OURS for line in run.lines) == patched
    assert any(line["builtin"] == MEMORY_MANAGER for line in run.lines) == (which == "all")
    assert [line["builtin"] for line in run.lines if line["result"] or line["status"]] == []
