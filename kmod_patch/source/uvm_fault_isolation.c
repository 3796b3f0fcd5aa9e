/* SPDX-License-Identifier: MIT OR GPL-2.0 */
#include "uvm_fault_isolation.h"
#include "uvm_fault_isolation_branch.h"
#include "uvm_fault_report.h"
#include "uvm_common.h"
#include "uvm_gpu.h"
#include "uvm_hal.h"
#include "uvm_hmm.h"
#include "uvm_kvmalloc.h"
#include "uvm_map_external.h"
#include "uvm_mem.h"
#include "uvm_mmu.h"
#include "uvm_push.h"
#include "uvm_tools.h"
#include "uvm_user_channel.h"
#include "uvm_va_range.h"
#include "uvm_va_space.h"
#include <linux/module.h>

enum
{
    POLICY_NEVER,
    POLICY_SHARED_TSG,
    POLICY_ALWAYS,
};

static uint uvm_fault_isolation = POLICY_SHARED_TSG;
module_param(uvm_fault_isolation, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation,
                 "Contain fatal memory faults: 0 never, 1 where the TSG is shared with another VA space (MPS), 2 always.");

static uint uvm_fault_isolation_max_sinks = 65536;
module_param(uvm_fault_isolation_max_sinks, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation_max_sinks,
                 "Sinks that one client can have on one GPU; what faults beyond that is cancelled.");

static uint uvm_fault_isolation_real_sink;
module_param(uvm_fault_isolation_real_sink, uint, S_IRUGO | S_IWUSR);
MODULE_PARM_DESC(uvm_fault_isolation_real_sink,
                 "Make sinks of a page of video memory instead of sparse entries: atomics and read-after-write work.");

/* For mpsguard-kmod status: this module is ours. */
static char *uvm_fault_isolation_version = UVM_ISOLATION_VERSION;
module_param(uvm_fault_isolation_version, charp, S_IRUGO);
MODULE_PARM_DESC(uvm_fault_isolation_version, "Version of the fault isolation.");

/*
 * A sink holds references to the page tables it is in. One over a mapping
 * shares them with the mapping, whose end clears the entries.
 */
typedef struct
{
    struct hlist_node node;
    uvm_page_table_range_vec_t *vec;
} sink_t;

/* The page directory is unset and nothing translates any more: entries need not be cleared before they are freed. */
void uvm_fault_isolation_gpu_va_space_deinit(uvm_gpu_va_space_t *gpu_va_space)
{
    uvm_gpu_va_space_isolation_t *isolation = &gpu_va_space->isolation;
    struct hlist_node *next;
    sink_t *sink;

    if (!isolation->sink_count && !gpu_va_space->va_space->isolation.poisoned)
        return;

    hlist_for_each_entry_safe(sink, next, &isolation->sinks, node) {
        hlist_del(&sink->node);
        uvm_page_table_range_vec_destroy(sink->vec);
        uvm_kvfree(sink);
    }
    isolation->sink_count = 0;
    uvm_mem_free(isolation->page);
    isolation->page = NULL;
}

static void note_contained(uvm_gpu_va_space_t *gpu_va_space, const uvm_fault_buffer_entry_t *fault)
{
    uvm_tools_record_gpu_fatal_fault(gpu_va_space->gpu->id, gpu_va_space->va_space, fault, fault->fatal_reason);
    uvm_fault_report_contained(gpu_va_space, fault);
}

static bool channel_shares_tsg(const uvm_gpu_va_space_t *gpu_va_space, const uvm_user_channel_t *channel)
{
    const uvm_user_channel_subctx_info_t *info = channel->subctx_info;
    NvU32 i;

    if (!channel->in_subctx || !info)
        return false;

    for (i = 0; i < channel->tsg.max_subctx_count; i++) {
        if (info->subctxs[i].refcount > 0 && !UVM_ISOLATION_IS_SUBCTX_OF(&info->subctxs[i], gpu_va_space))
            return true;
    }

    return false;
}

/*
 * Does the client share a TSG with another VA space? Which of its TSGs the
 * fault is from cannot always be told: the packet can name any channel of it.
 */
static bool shares_tsg(uvm_gpu_va_space_t *gpu_va_space)
{
    uvm_parent_gpu_t *parent_gpu = gpu_va_space->gpu->parent;
    uvm_user_channel_t *channel;
    bool shared = false;

    /* The list is protected by the VA space lock, what the channels point to by this one. */
    uvm_spin_lock(&parent_gpu->instance_ptr_table_lock);
    list_for_each_entry(channel, &gpu_va_space->registered_channels, list_node)
        shared = shared || channel_shares_tsg(gpu_va_space, channel);
    uvm_spin_unlock(&parent_gpu->instance_ptr_table_lock);

    return shared;
}

static void poison(uvm_gpu_va_space_t *gpu_va_space)
{
    WRITE_ONCE(gpu_va_space->va_space->isolation.poisoned, 1);
}

static NvU64 sparse_pte(uvm_page_table_range_vec_t *range_vec, NvU64 offset, void *unused)
{
    return range_vec->tree->hal->make_sparse_pte();
}

/* Every entry points at the one page. */
static NvU64 real_pte(uvm_page_table_range_vec_t *range_vec, NvU64 offset, void *page)
{
    uvm_gpu_phys_address_t address = uvm_mem_gpu_physical(page, range_vec->tree->gpu, 0, UVM_PAGE_SIZE_64K);

    return range_vec->tree->hal->make_pte(address.aperture,
                                          address.address,
                                          UVM_PROT_READ_WRITE_ATOMIC,
                                          UVM_MMU_PTE_FLAGS_CACHED);
}

/* A page of zeros in video memory; NULL if it cannot be had, and sparse entries have to do. */
static uvm_mem_t *real_page(uvm_gpu_va_space_t *gpu_va_space)
{
    uvm_gpu_t *gpu = gpu_va_space->gpu;
    uvm_mem_t *page = gpu_va_space->isolation.page;
    uvm_push_t push;
    NV_STATUS status;

    if (page || !READ_ONCE(uvm_fault_isolation_real_sink))
        return page;

    status = uvm_mem_alloc_vidmem(UVM_PAGE_SIZE_64K, gpu, &page);
    if (status != NV_OK)
        return NULL;

    status = uvm_push_begin(gpu->channel_manager, UVM_CHANNEL_TYPE_GPU_INTERNAL, &push, "Zero the sink page");
    if (status == NV_OK) {
        gpu->parent->ce_hal->memset_8(&push,
                                      uvm_mem_gpu_address_copy(page, gpu, 0, UVM_PAGE_SIZE_64K),
                                      0,
                                      UVM_PAGE_SIZE_64K);
        status = uvm_push_end_and_wait(&push);
    }
    if (status != NV_OK) {
        uvm_mem_free(page);
        return NULL;
    }

    gpu_va_space->isolation.page = page;
    return page;
}

static NV_STATUS place_sink(uvm_gpu_va_space_t *gpu_va_space, NvU64 start, NvU64 size, NvU64 page_size)
{
    uvm_mem_t *page = page_size <= UVM_PAGE_SIZE_64K ? gpu_va_space->isolation.page : NULL;
    NV_STATUS status;
    sink_t *sink;

    if (gpu_va_space->isolation.sink_count >= READ_ONCE(uvm_fault_isolation_max_sinks))
        return NV_ERR_INSUFFICIENT_RESOURCES;

    sink = uvm_kvmalloc_zero(sizeof(*sink));
    if (!sink)
        return NV_ERR_NO_MEMORY;

    status = uvm_page_table_range_vec_create(&gpu_va_space->page_tables,
                                             start,
                                             size,
                                             page_size,
                                             UVM_PMM_ALLOC_FLAGS_EVICT,
                                             &sink->vec);
    if (status != NV_OK)
        goto free;

    /* Waits for the write, and for the invalidation of the TLBs that ends it. */
    status = uvm_page_table_range_vec_write_ptes(sink->vec, UVM_MEMBAR_NONE, page ? real_pte : sparse_pte, page);
    if (status != NV_OK) {
        uvm_page_table_range_vec_destroy(sink->vec);
        goto free;
    }

    hlist_add_head(&sink->node, &gpu_va_space->isolation.sinks);
    gpu_va_space->isolation.sink_count++;
    return NV_OK;

free:
    uvm_kvfree(sink);
    return status;
}

/* In a hole [start, end] of one 2 MiB block: all of it that 64 KiB pages cover, or the one small page. */
static NV_STATUS place_in_hole(uvm_gpu_va_space_t *gpu_va_space, NvU64 address, NvU64 start, NvU64 end)
{
    NvU64 first = UVM_ALIGN_UP(start, UVM_PAGE_SIZE_64K);
    NvU64 behind = UVM_ALIGN_DOWN(end + 1, UVM_PAGE_SIZE_64K);

    if (first <= address && address < behind)
        return place_sink(gpu_va_space, first, behind - first, UVM_PAGE_SIZE_64K);

    return place_sink(gpu_va_space, UVM_ALIGN_DOWN(address, UVM_PAGE_SIZE_4K), UVM_PAGE_SIZE_4K, UVM_PAGE_SIZE_4K);
}

/*
 * Outside of all ranges. The hole stays one once the VA space is poisoned:
 * ranges are added with the VA space lock held for write, HMM's blocks with
 * blocks_lock, and both look for poison first.
 */
static NV_STATUS contain_in_no_range(uvm_gpu_va_space_t *gpu_va_space, NvU64 address)
{
    uvm_va_space_t *va_space = gpu_va_space->va_space;
    NvU64 start = UVM_ALIGN_DOWN(address, UVM_PAGE_SIZE_2M);
    NvU64 end = start + UVM_PAGE_SIZE_2M - 1;
    NV_STATUS status = uvm_range_tree_find_hole_in(&va_space->va_range_tree, address, &start, &end);

    if (status == NV_OK && uvm_hmm_is_enabled(va_space)) {
        uvm_mutex_lock(&va_space->hmm.blocks_lock);
        status = uvm_range_tree_find_hole_in(&va_space->hmm.blocks, address, &start, &end);
        uvm_mutex_unlock(&va_space->hmm.blocks_lock);
    }
    if (status != NV_OK)
        return status;

    return place_in_hole(gpu_va_space, address, start, end);
}

/*
 * In an external range: a hole between its mappings, or what a mapping does not
 * permit. NV_WARN_MORE_PROCESSING_REQUIRED if the range is being changed: who
 * does that holds its lock over calls of RM, and RM can be waiting for a channel
 * that waits for this very bottom half. It is not to be waited for.
 */
static NV_STATUS contain_in_external(uvm_gpu_va_space_t *gpu_va_space, uvm_va_range_t *va_range, NvU64 address)
{
    uvm_ext_gpu_range_tree_t *tree = uvm_ext_gpu_range_tree(UVM_ISOLATION_EXTERNAL(va_range), gpu_va_space->gpu);
    NvU64 block = UVM_ALIGN_DOWN(address, UVM_PAGE_SIZE_2M);
    NvU64 start = max(block, va_range->node.start);
    NvU64 end = min(block + UVM_PAGE_SIZE_2M - 1, va_range->node.end);
    uvm_range_tree_node_t *node;
    NV_STATUS status;

    if (!uvm_mutex_trylock(&tree->lock))
        return NV_WARN_MORE_PROCESSING_REQUIRED;

    node = uvm_range_tree_find(&tree->tree, address);
    if (node) {
        uvm_ext_gpu_map_t *map = container_of(node, uvm_ext_gpu_map_t, node);
        NvU64 page_size = map->pt_range_vec.page_size;

        /*
         * The client loses sight of one page of the mapping. The memory
         * stays, and others that map it have page tables of their own.
         */
        status = uvm_tracker_wait(&map->tracker);
        if (status == NV_OK)
            status = place_sink(gpu_va_space, UVM_ALIGN_DOWN(address, page_size), page_size, page_size);
    }
    else {
        status = uvm_range_tree_find_hole_in(&tree->tree, address, &start, &end);
        if (status == NV_OK)
            status = place_in_hole(gpu_va_space, address, start, end);
    }
    uvm_mutex_unlock(&tree->lock);

    return status;
}

/* Can an entry in the client's page tables cure it? */
static bool is_curable(const uvm_gpu_va_space_t *gpu_va_space, const uvm_fault_buffer_entry_t *fault)
{
    return fault->fault_type < UVM_FAULT_TYPE_FATAL &&
           fault->is_virtual &&
           !gpu_va_space->ats.enabled &&
           UVM_ISOLATION_HAS_SPARSE(gpu_va_space->gpu->parent) &&
           uvm_gpu_can_address(gpu_va_space->gpu, fault->fault_address, PAGE_SIZE);
}

static bool policy_allows(uvm_gpu_va_space_t *gpu_va_space)
{
    uint policy = READ_ONCE(uvm_fault_isolation);

    /* The agent may be gone once it has a poisoned client to end: it is in the list when the agent comes back. */
    if (!READ_ONCE(gpu_va_space->va_space->isolation.poisoned) && !uvm_fault_report_is_heard())
        return false;

    return policy == POLICY_ALWAYS || (policy == POLICY_SHARED_TSG && shares_tsg(gpu_va_space));
}

NV_STATUS uvm_fault_isolation_contain(uvm_gpu_va_space_t *gpu_va_space, uvm_fault_buffer_entry_t *fault)
{
    uvm_va_space_t *va_space = gpu_va_space->va_space;
    uvm_va_range_t *va_range;
    NV_STATUS status;

    uvm_assert_rwsem_locked(&va_space->lock);

    if (!policy_allows(gpu_va_space) || !is_curable(gpu_va_space, fault))
        return NV_ERR_NOT_SUPPORTED;

    /* Managed memory has page tables with a life of their own; so have channels' and semaphores' ranges. */
    va_range = uvm_va_range_find(va_space, fault->fault_address);
    if (va_range && va_range->type != UVM_VA_RANGE_TYPE_EXTERNAL)
        return NV_ERR_NOT_SUPPORTED;

    poison(gpu_va_space);
    (void)real_page(gpu_va_space);

    if (va_range)
        status = contain_in_external(gpu_va_space, va_range, fault->fault_address);
    else
        status = contain_in_no_range(gpu_va_space, fault->fault_address);

    if (status == NV_OK)
        note_contained(gpu_va_space, fault);

    return status == NV_WARN_MORE_PROCESSING_REQUIRED ? NV_OK : status;
}
