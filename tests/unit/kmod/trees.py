"""A driver tree in miniature: our own words in the shape that the rules look for, and not a line of the vendor's."""

from __future__ import annotations

from pathlib import Path

SPACE_H = """\
#include "uvm_va_block_types.h"

struct uvm_gpu_va_space_struct
{
    int number;
    uvm_ats_gpu_va_space_t ats;
};

struct uvm_va_space_struct
{
    int number;
    nv_kthread_q_item_t deferred_release_q_item;
};
"""

SPACE_C = """\
NV_STATUS uvm_va_space_create(uvm_va_space_t **out)
{
    uvm_va_space_t *space = make();
    *out = space;
    return NV_OK;
}

void uvm_va_space_destroy(uvm_va_space_t *space)
{
    uvm_kvfree(space->mapping);
}

static void destroy_gpu_va_space(uvm_gpu_va_space_t *gpu_space)
{
    uvm_page_tree_deinit(&gpu_space->page_tables);
}
"""

REPLAYABLE_C = """\
static void mark_fault_fatal(batch_t *batch, fault_t *fault)
{
    if (!batch->fatal_va_space) {
        note(fault);
        batch->fatal_va_space = fault->space;
    }
}

static void service_fault_batch(batch_t *batch, uvm_va_space_t *space)
{
    if (!batch->fatal_va_space)
        batch->fatal_va_space = space;
}

static NV_STATUS service_fault_batch_for_cancel(gpu_t *gpu, batch_t *batch)
{
    NV_STATUS status;
    uvm_gpu_va_space_t *space = NULL;
    fault_t *fault = first(batch);

    space = uvm_gpu_va_space_get(batch->space, gpu);
    if (early(fault))
        status = cancel_fault_precise_va(fault, ALL);
    else
        status = cancel_fault_precise_va(fault, fault->replayable.cancel_va_mode);
    return status;
}

static NV_STATUS cancel_everything(fault_t *fault)
{
    NV_STATUS status;
    status = cancel_fault_precise_va(fault, ALL);
    return status;
}
"""

NON_REPLAYABLE_C = """\
static NV_STATUS service_fault(gpu_t *gpu, fault_t *fault)
{
    NV_STATUS status = NV_OK;
    uvm_gpu_va_space_t *space = find(gpu);
    channel_t *channel = uvm_gpu_va_space_get_user_channel(space, fault->instance);

    status = service(fault);
    if (status == NV_OK && !fault->is_fatal) {
        status = clear_faulted_on_gpu(channel, fault);
        uvm_tracker_clear(&gpu->tracker);
    }
    if (fault->is_fatal)
        uvm_tools_record_gpu_fatal_fault(gpu->id, fault);
    return status;
}
"""

MMU_C = """\
static NV_STATUS try_get_ptes(tree_t *tree, NvU64 start, NvU64 size)
{
    UVM_ASSERT(uvm_gpu_can_address(tree->gpu, start, size));
    return look_up(tree, start, size);
}
"""

RANGE_C = """\
static NV_STATUS uvm_va_range_alloc_reclaim(uvm_va_space_t *space, int start, int end)
{
    NV_STATUS status;
    status = uvm_hmm_va_block_reclaim(space, start, end);
    return status;
}

NV_STATUS uvm_va_range_create_mmap(uvm_va_space_t *space, int start, int end)
{
    NV_STATUS status;
    status = uvm_hmm_va_block_reclaim(space, start, end);
    return status;
}
"""


def _mapping(name: str) -> str:
    return f"""\
static NV_STATUS {name}(range_t *range, tree_t *tree)
{{
    uvm_va_space_t *space = range->space;
    NV_STATUS status;

    uvm_mutex_lock(&tree->lock);
    status = uvm_unmap_external_in_range(range, tree);
    if (status != NV_OK)
        goto out;
    status = map(range);
out:
    uvm_mutex_unlock(&tree->lock);
    return status;
}}
"""


HMM_C = """\
static NV_STATUS hmm_va_block_find_create(uvm_va_space_t *space, block_t **block)
{
    NV_STATUS status;
    NvU64 start = 0, end = 1;

    uvm_mutex_lock(&space->hmm.blocks_lock);
    status = uvm_range_tree_find_hole_in(&space->hmm.blocks, address, &start, &end);
    status = uvm_va_block_create(space, block);
    if (status != NV_OK)
        goto out;
out:
    uvm_mutex_unlock(&space->hmm.blocks_lock);
    return status;
}
"""

CHANNEL_C = """\
static NV_STATUS uvm_register_channel_under_write(uvm_va_space_t *space, uvm_gpu_va_space_t *gpu_space)
{
    UVM_ASSERT(!space->disallow_new_registers);
    if (atomic_read(&gpu_space->disallow_new_channels))
        return NV_ERR_INVALID_DEVICE;
    return enter(gpu_space);
}
"""

TEST_C = """\
#include "uvm_test_ioctl.h"

long uvm_test_ioctl(file_t *file, int command)
{
    switch (command)
    {
        UVM_ROUTE_CMD_STACK_INIT_CHECK(UVM_TEST_OTHER, other);
        UVM_ROUTE_CMD_STACK_INIT_CHECK(UVM_TEST_RNG_SANITY, uvm_test_rng_sanity);
    }
    return NV_OK;
}
"""

PROCFS_C = """\
#include "uvm_procfs.h"

NV_STATUS uvm_procfs_init(void)
{
    directory = NV_CREATE_PROC_DIR(UVM_PROC_DIR_NAME, NULL);
    if (directory == NULL)
        return NV_ERR_OPERATING_SYSTEM;
    return NV_OK;
}

void uvm_procfs_exit(void)
{
    proc_remove(directory);
}
"""

FILES = {
    "Kbuild": 'ccflags-y += -DNV_VERSION_STRING=\\"580.1.2\\"\n',
    "nvidia-uvm/nvidia-uvm-sources.Kbuild": "NVIDIA_UVM_SOURCES ?=\nNVIDIA_UVM_SOURCES += nvidia-uvm/uvm.c\n",
    "nvidia-uvm/uvm_va_space.h": SPACE_H,
    "nvidia-uvm/uvm_va_space.c": SPACE_C,
    "nvidia-uvm/uvm_gpu_replayable_faults.c": REPLAYABLE_C,
    "nvidia-uvm/uvm_gpu_non_replayable_faults.c": NON_REPLAYABLE_C,
    "nvidia-uvm/uvm_mmu.c": MMU_C,
    "nvidia-uvm/uvm_va_range.c": RANGE_C,
    "nvidia-uvm/uvm_map_external.c": "\n".join(
        _mapping(name) for name in ("uvm_map_external_allocation_on_gpu", "uvm_map_external_sparse_on_gpu")
    ),
    "nvidia-uvm/uvm_hmm.c": HMM_C,
    "nvidia-uvm/uvm_user_channel.c": CHANNEL_C,
    "nvidia-uvm/uvm_test.c": TEST_C,
    "nvidia-uvm/uvm_gpu_isr.h": (
        "void uvm_parent_gpu_replayable_faults_isr_lock(gpu_t *gpu);\n"
        "void uvm_parent_gpu_replayable_faults_isr_unlock(gpu_t *gpu);\n"
    ),
    "nvidia-uvm/uvm_procfs.c": PROCFS_C,
    "nvidia-uvm/uvm_va_range.h": "range_t *uvm_va_range_to_external(range_t *range);\n",
    "nvidia-uvm/uvm_gpu.h": "struct uvm_parent_gpu_struct { uvm_fault_buffer_t fault_buffer; };\n",
    "nvidia-uvm/uvm_user_channel.h": "struct { struct { uvm_gpu_va_space_t *gpu_va_space; int count; } *subctxs; };\n",
}


def make(root: Path) -> Path:
    """The tree, at a place that is not there yet."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Everything in it, to be compared."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
