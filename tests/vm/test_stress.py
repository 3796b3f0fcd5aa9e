"""Random faults of many clients that come, go and are killed: no innocent is hurt, and all is given back."""

from __future__ import annotations

import pytest

from tests.vm import workshop
from tests.vm.guests import run_program
from tests.vm.sources import Kernel, driver_tree

pytestmark = [pytest.mark.slow(seconds=150, reason="boots virtual machines without KVM"), pytest.mark.timeout(3600)]

FAULTS = (250, pytest.param(1000, marks=pytest.mark.soak))
"""`scripts/kmod-suite` does 10,000."""
DEADLINE_S = 1200.0


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("branch", ["535"], indirect=True)
def test_random_faults(kernel: Kernel, branch: str, faults: int) -> None:
    modules = workshop.build(driver_tree(branch), kernel, patched=True)
    parameters = "uvm_enable_builtin_tests=1 uvm_leak_checker=1"
    run = run_program(kernel, modules, "stress", str(faults), "1", parameters=parameters, deadline_s=DEADLINE_S)
    assert run.trouble == []
    (result,) = run.lines
    assert result["why"] == ""
    assert run.status == 0, run.console[-4000:]
    assert result["contained"] >= faults
    assert result["by_copy_engine"] > 0
    assert result["innocent_rounds"] > 0
    assert result["killed"] > 0
    for what in ("chunks", "rm", "spaces", "channels"):
        assert result[f"{what}_after"] <= result[f"{what}_before"]


@pytest.mark.parametrize("branch", ["535"], indirect=True)
def test_the_stock_module_fails_it(kernel: Kernel, branch: str) -> None:
    modules = workshop.build(driver_tree(branch), kernel, patched=False)
    parameters = "uvm_enable_builtin_tests=1"
    run = run_program(kernel, modules, "stress", "50", "1", parameters=parameters, deadline_s=DEADLINE_S)
    assert run.status == 1
    assert [line["ok"] for line in run.lines] == [False]
