/* SPDX-License-Identifier: MIT OR GPL-2.0 */
#include "uvm_fault_isolation_block.h"
#include "uvm_gpu.h"
#include "uvm_hal.h"
#include "uvm_mmu.h"
#include "uvm_pte_batch.h"
#include "uvm_push.h"
#include "uvm_tlb_batch.h"
#include "uvm_va_block.h"
#include "uvm_va_space.h"

typedef struct
{
    uvm_page_tree_t *tree;
    uvm_va_block_t *block;
    uvm_va_block_gpu_state_t *state;
    uvm_pte_batch_t batch;
} writer_t;

static void make_sparse(writer_t *writer, uvm_page_table_range_t *range, size_t index)
{
    uvm_pte_batch_write_pte(&writer->batch,
                            uvm_page_table_range_entry_address(writer->tree, range, index),
                            writer->tree->hal->make_sparse_pte(),
                            uvm_mmu_pte_size(writer->tree, range->page_size));
}

/* Which entry of an unmapped block the GPU reads for an address, the block's state says, as for a mapped one. */
static NvU64 make_sparse_at(writer_t *writer, NvU64 address)
{
    uvm_page_table_range_t *big = &writer->state->page_table_range_big;
    uvm_page_table_range_t *small = &writer->state->page_table_range_4k;

    if (big->table) {
        NvU64 big_size = big->page_size;
        NvU64 first = (writer->block->start + big_size - 1) & ~(big_size - 1);
        size_t index = address < first ? big->entry_count : (size_t)((address - first) / big_size);

        if (index < big->entry_count && test_bit(index, writer->state->big_ptes)) {
            make_sparse(writer, big, index);
            return big_size;
        }
    }

    if (small->table)
        make_sparse(writer, small, (size_t)((address - writer->block->start) / UVM_PAGE_SIZE_4K));

    return UVM_PAGE_SIZE_4K;
}

static bool is_one_entry(const uvm_va_block_gpu_state_t *state)
{
    return state->page_table_range_2m.table &&
           (state->pte_is_2m || (!state->page_table_range_big.table && !state->page_table_range_4k.table));
}

static NV_STATUS write_entries(uvm_gpu_va_space_t *gpu_va_space, uvm_va_block_t *va_block)
{
    uvm_gpu_t *gpu = gpu_va_space->gpu;
    writer_t writer = {
        .tree = &gpu_va_space->page_tables,
        .block = va_block,
        .state = uvm_va_block_gpu_state_get(va_block, gpu->id),
    };
    NvU64 address = va_block->start;
    NvU64 page_sizes;
    uvm_push_t push;
    NV_STATUS status;

    status = uvm_push_begin_acquire(gpu->channel_manager,
                                    UVM_CHANNEL_TYPE_MEMOPS,
                                    &va_block->tracker,
                                    &push,
                                    "Sink in block [0x%llx, 0x%llx]",
                                    va_block->start,
                                    va_block->end);
    if (status != NV_OK)
        return status;

    uvm_pte_batch_begin(&push, &writer.batch);
    if (is_one_entry(writer.state)) {
        make_sparse(&writer, &writer.state->page_table_range_2m, 0);
        page_sizes = UVM_PAGE_SIZE_2M;
    }
    else {
        while (address <= va_block->end)
            address += make_sparse_at(&writer, address);
        page_sizes = UVM_PAGE_SIZE_4K;
    }
    uvm_pte_batch_end(&writer.batch);
    uvm_tlb_batch_single_invalidate(writer.tree,
                                    &push,
                                    va_block->start,
                                    va_block->end - va_block->start + 1,
                                    page_sizes,
                                    UVM_MEMBAR_NONE);

    return uvm_push_end_and_wait(&push);
}

static bool has_page_tables(uvm_va_block_t *va_block, uvm_gpu_t *gpu)
{
    const uvm_va_block_gpu_state_t *state = uvm_va_block_gpu_state_get(va_block, gpu->id);

    return state &&
           (state->page_table_range_2m.table || state->page_table_range_big.table || state->page_table_range_4k.table);
}

NV_STATUS uvm_fault_isolation_block_sink(uvm_gpu_va_space_t *gpu_va_space, uvm_va_block_t *va_block)
{
    uvm_gpu_t *gpu = gpu_va_space->gpu;
    uvm_va_block_context_t *context = uvm_va_block_context_alloc(NULL);
    NV_STATUS status = NV_WARN_NOTHING_TO_DO;

    if (!context)
        return NV_ERR_NO_MEMORY;

    uvm_mutex_lock(&va_block->lock);
    if (!uvm_va_block_is_dead(va_block) && has_page_tables(va_block, gpu)) {
        status = uvm_va_block_unmap(va_block,
                                    context,
                                    gpu->id,
                                    uvm_va_block_region_from_block(va_block),
                                    NULL,
                                    &va_block->tracker);
        if (status == NV_OK)
            status = write_entries(gpu_va_space, va_block);
    }
    uvm_mutex_unlock(&va_block->lock);
    uvm_va_block_context_free(context);

    return status;
}
