"""The rules: what each one is to find, in which file and function, and how often.

A rule is a Coccinelle file of the same name. Coccinelle says nothing of what it did not find, so what it changed is
counted: each place where it applies gets the rule's marker once.
"""

from pathlib import Path
from typing import Final

import msgspec

DIRECTORY: Final = Path(__file__).resolve().parent / "rules"


class Place(msgspec.Struct, frozen=True):
    """A function (or structure, or "" for the head of the file) where a rule applies."""

    names: tuple[str, ...]
    """What it is called; another name in another branch."""
    count: int = 1


class Rule(msgspec.Struct, frozen=True):
    """One rule for one file."""

    name: str
    file: str
    """In nvidia-uvm/."""
    marker: str
    """What one application puts into the text exactly once."""
    places: tuple[Place, ...]

    @property
    def path(self) -> Path:
        """The Coccinelle file."""
        return DIRECTORY / f"{self.name}.cocci"


RULES: Final = (
    Rule("declarations", "uvm_va_space.h", '#include "uvm_fault_isolation.h"', (Place(("",)),)),
    Rule(
        "va-space-state",
        "uvm_va_space.h",
        "uvm_va_space_isolation_t isolation;",
        (Place(("uvm_va_space_struct",)),),
    ),
    Rule(
        "gpu-va-space-state",
        "uvm_va_space.h",
        "uvm_gpu_va_space_isolation_t isolation;",
        (Place(("uvm_gpu_va_space_struct",)),),
    ),
    Rule(
        "va-space-is-handed-out",
        "uvm_va_space.c",
        "uvm_fault_isolation_va_space_init(",
        (Place(("uvm_va_space_create",)),),
    ),
    Rule(
        "va-space-is-freed",
        "uvm_va_space.c",
        "uvm_fault_isolation_va_space_deinit(",
        (Place(("uvm_va_space_destroy",)),),
    ),
    Rule(
        "page-tree-is-freed",
        "uvm_va_space.c",
        "uvm_fault_isolation_gpu_va_space_deinit(",
        (Place(("destroy_gpu_va_space",)),),
    ),
    Rule(
        "sm-fault-is-fatal",
        "uvm_gpu_replayable_faults.c",
        "uvm_fault_isolation_contain(",
        (Place(("service_fault_batch_for_cancel",)),),
    ),
    Rule(
        "fatal-va-space-is-chosen",
        "uvm_gpu_replayable_faults.c",
        "uvm_fault_isolation_goes_first(",
        (Place(("mark_fault_fatal",)), Place(("service_fault_batch",))),
    ),
    Rule(
        "sink-beyond-cpu",
        "uvm_mmu.c",
        "uvm_gpu_can_address(tree->gpu, start, size) || uvm_gpu_can_address_kernel(",
        (Place(("try_get_ptes",)),),
    ),
    Rule(
        "copy-engine-fault-is-fatal",
        "uvm_gpu_non_replayable_faults.c",
        "uvm_fault_isolation_contain(",
        (Place(("service_fault", "service_fault_once")),),
    ),
    Rule(
        "new-range",
        "uvm_va_range.c",
        "uvm_fault_isolation_admit(",
        (
            Place(("uvm_va_range_alloc_reclaim", "uvm_va_range_initialize_reclaim")),
            Place(("uvm_va_range_create_mmap",)),
        ),
    ),
    Rule(
        "new-mapping",
        "uvm_map_external.c",
        "uvm_fault_isolation_admit(",
        (Place(("uvm_map_external_allocation_on_gpu",)), Place(("uvm_map_external_sparse_on_gpu",))),
    ),
    Rule(
        "new-hmm-block",
        "uvm_hmm.c",
        "uvm_fault_isolation_clip_block(",
        (Place(("hmm_va_block_find_create",)),),
    ),
    Rule(
        "new-channel",
        "uvm_user_channel.c",
        "uvm_fault_isolation_admit(",
        (Place(("uvm_register_channel_under_write",)),),
    ),
    Rule(
        "test-is-offered",
        "uvm_test.c",
        "UVM_ROUTE_CMD_STACK_INIT_CHECK(UVM_TEST_FAULT_ISOLATION, uvm_fault_isolation_test)",
        (Place(("uvm_test_ioctl",)),),
    ),
    Rule(
        "list-is-made",
        "uvm_procfs.c",
        "uvm_fault_report_init(",
        (Place(("uvm_procfs_init",)),),
    ),
    Rule(
        "list-is-removed",
        "uvm_procfs.c",
        "uvm_fault_report_exit(",
        (Place(("uvm_procfs_exit",)),),
    ),
)
