"""The cases, with the stock module and with the patched one: what the stock module fails is what the patch is for."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.vm import workshop
from tests.vm.guests import run_program
from tests.vm.sources import Kernel, driver_tree
from tests.vm.workshop import Modules

pytestmark = [pytest.mark.slow(seconds=300, reason="boots virtual machines without KVM"), pytest.mark.timeout(3600)]

LEAST_CASES = 30
DEADLINE_S = 900.0
CHECKED = "uvm_enable_builtin_tests=1"
"""Or UVM looks at no permissions of managed memory, which stand in for those of HMM's blocks here."""


STOCK = ("550", pytest.param("535", marks=pytest.mark.soak))


@cache
def cases_of(kernel: Kernel, modules: Modules) -> dict[str, dict[str, Any]]:
    """Every case by its name; the run ended well, the modules were unloaded, and the kernel had nothing to say."""
    run = run_program(kernel, modules, "scenario", parameters=CHECKED, deadline_s=DEADLINE_S)
    assert run.status == 0, run.console[-4000:]
    assert run.trouble == []
    *cases, total = run.lines
    assert total == {"cases": len(cases)}
    assert len(cases) >= LEAST_CASES
    return {case["case"]: case for case in cases}


def test_the_patched_module_passes(kernel: Kernel, branch: str) -> None:
    cases = cases_of(kernel, workshop.build(driver_tree(branch), kernel, patched=True))
    assert {name: case["why"] for name, case in cases.items() if not case["ok"]} == {}


@pytest.mark.parametrize("branch", STOCK, indirect=True)
def test_the_stock_module_fails_what_is_contained(kernel: Kernel, branch: str) -> None:
    tree = driver_tree(branch)
    stock = cases_of(kernel, workshop.build(tree, kernel, patched=False))
    assert stock.keys() == cases_of(kernel, workshop.build(tree, kernel, patched=True)).keys()
    assert [name for name, case in stock.items() if case["ok"] == case["contained"]] == []


@pytest.mark.soak
@pytest.mark.parametrize("branch", ["550"], indirect=True)
def test_debug_build_has_nothing_to_say(kernel: Kernel, branch: str) -> None:
    """UVM's own assertions, and its check of the order of locks."""
    cases = cases_of(kernel, workshop.build(driver_tree(branch), kernel, patched=True, debug=True))
    assert {name: case["why"] for name, case in cases.items() if not case["ok"]} == {}
