"""The cost of the patch without a fault: the code of all functions but the hooked ones is as in the stock module."""

from __future__ import annotations

import pytest

from tests.vm import workshop
from tests.vm.code import functions
from tests.vm.sources import Kernel, driver_tree

pytestmark = [pytest.mark.slow(seconds=100, reason="builds kernel modules"), pytest.mark.timeout(3600)]

SERVICE = {"uvm_gpu_service_replayable_faults", "uvm_parent_gpu_service_replayable_faults"}
"""The compiler puts service_fault_batch_for_cancel, which runs for fatal faults only, into it."""

HOOKED = SERVICE | {
    "destroy_gpu_va_space",
    "hmm_va_block_find_create",
    "mark_fault_fatal",
    "service_fault_batch",
    "service_fault_batch_block_locked",
    "service_fault_batch_for_cancel",
    "uvm_api_map_external_sparse",
    "uvm_api_register_channel",
    "uvm_gpu_service_non_replayable_fault_buffer",
    "uvm_map_external_allocation_on_gpu",
    "uvm_procfs_exit",
    "uvm_procfs_init",
    "uvm_test_ioctl",
    "uvm_va_range_alloc_reclaim",
    "uvm_va_range_create_channel",
    "uvm_va_range_create_external",
    "uvm_va_range_create_mmap",
    "uvm_va_range_create_semaphore_pool",
    "uvm_va_range_create_sked_reflected",
    "uvm_va_space_create",
    "uvm_va_space_destroy",
}
"""Where a rule applies, or into what the compiler puts such a function."""

SPECIALISED = ("service_fault_batch_fatal.", "uvm_mem_alloc_vidmem.", "uvm_tlb_batch_single_invalidate.")
"""An inline function of a header, of which there is a copy for each set of constants it is called with."""


def test_only_hooked_functions_differ(kernel: Kernel, branch: str) -> None:
    tree = driver_tree(branch)
    stock = functions(workshop.build(tree, kernel, patched=False).uvm)
    patched = functions(workshop.build(tree, kernel, patched=True).uvm)
    assert len(stock) > 1000
    different = {name for name, code in stock.items() if patched.get(name) != code}
    assert different, "nothing is hooked: the wrong modules were compared"
    assert {name for name in different - HOOKED if not name.startswith(SPECIALISED)} == set()
